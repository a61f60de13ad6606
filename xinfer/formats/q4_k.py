"""GGUF Q4_K: 256 weights in 144 bytes, d and dmin (f16), a 6-bit scale S and minimum M for each 32, codes of
4 bits; w = (d * S) * code - dmin * M.

Device: "codes" as in q4_0; "scales", (S, M) bytes of a row's two blocks in a tile; "supers", f16 (d, dmin) of
each row and 256 k.
"""

import numpy as np

from .format import (
    Format,
    blocks,
    f16,
    fragments,
    lanes_of,
    matrix,
    pack_bits,
    pieces,
    row_scales,
    rows_of,
    unpack_bits,
)  # fmt: skip


def six_bit(b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(S, M) u8 [..., blocks, 8] from the 12 bytes they are packed in."""
    sc = b[..., 4:16]
    low, high, last = sc[..., :4], sc[..., 4:8], sc[..., 8:]
    scales = np.concatenate([low & 63, last & 15 | low >> 6 << 4], -1)
    return scales, np.concatenate([high & 63, last >> 4 | high >> 6 << 4], -1)


def codes_of(b: np.ndarray) -> np.ndarray:
    """u8 [..., blocks, 256]: 32 low nibbles, then the 32 high ones of the same bytes."""
    q = b[..., 16:].reshape(*b.shape[:-1], 4, 1, 32)
    return np.concatenate([q & 15, q >> 4], -2).reshape(*b.shape[:-1], 256)


def decode(raw: np.ndarray) -> np.ndarray:
    """u8 [..., K/256*144] -> f32 [..., K]."""
    b = blocks(raw, 144)
    scales, minima = (v.astype(np.float32) for v in six_bit(b))
    d, m = np.repeat(f16(b, 0) * scales, 32, -1), np.repeat(f16(b, 2) * minima, 32, -1)
    return (d * codes_of(b).astype(np.float32) - m).reshape(*raw.shape[:-1], -1)


def pack(raw: np.ndarray) -> tuple[np.ndarray, ...]:
    b = blocks(raw, 144)
    codes = codes_of(b).reshape(len(raw), -1)
    pairs = np.stack(six_bit(b), -1).reshape(len(raw), -1, 2)
    supers = np.ascontiguousarray(b[..., :4]).view(np.uint16)
    return pieces(pack_bits(fragments(codes), 4, 4)), row_scales(pairs, 2), row_scales(supers, 1)


def unpack(planes: tuple[np.ndarray, ...], n: int, k: int) -> np.ndarray:
    codes = matrix(unpack_bits(lanes_of(planes[0], 16), 4, 4), n, k).astype(np.float32)
    pairs = rows_of(planes[1], np.uint8, n, k // 64, 2, 2).astype(np.float32)
    supers = rows_of(planes[2], np.float16, n, k // 256, 1, 2).astype(np.float32)
    d, m = (np.repeat(np.repeat(supers[..., i], 8, 1) * pairs[..., i], 32, 1) for i in range(2))
    return d * codes - m


Q4_K = Format(
    "q4_k", 256, 144, decode, pack, unpack, (("codes", 512), ("scales", 64), ("super scales", 16)),
    f"{__name__}:device_decoder", "q4_k", 12,
)  # fmt: skip


def device_decoder():
    """8 registers: a word of codes a step, (S, M) bytes of row g, blocks 0 and 1, and of row g+8, (d, dmin)
    of both.

    d * S (17 bits) and its product with a code (21 bits) are exact in f32, so one fused subtraction rounds
    alike.
    """
    from numba import float32, int64, uint32

    from xinfer.kernels.cuda import decoder
    from xinfer.kernels.cuda.ptx import (
        device,
        f16_hi_to_f32,
        f16_lo_to_f32,
        fma_rn,
        ld_stream64,
        ld_stream128,
        mul_rn,
        sub_rn,
    )  # fmt: skip

    @device
    def fetch(p0, p1, p2, p3, tile, lane):
        row = int64(lane >> 2) * 8
        c = ld_stream128(p0 + tile * 512 + int64(lane) * 16)
        s = ld_stream64(p1 + tile * 64 + row)
        d = ld_stream64(p2 + (tile >> 2) * 64 + row)
        return c[0], c[1], c[2], c[3], s[0], s[1], d[0], d[1]

    @device
    def byte(word, i):
        return float32(uint32(uint32(word >> uint32(8 * i)) & uint32(255)))

    @device
    def prepare(words, out):
        for half in range(2):
            d, m = f16_lo_to_f32(words[6 + half]), f16_hi_to_f32(words[6 + half])
            for block in range(2):
                at = (half * 2 + block) * 2
                out[at] = mul_rn(d, byte(words[4 + half], 2 * block))
                out[at + 1] = mul_rn(-m, byte(words[4 + half], 2 * block + 1))

    @device
    def value(code, d, s, half):
        at = (half * 2 + s // 2) * 2
        return fma_rn(sub_rn(code, float32(128)), d[at], d[at + 1])

    pair = decoder.code_pair(0, 4, 4)
    return decoder.Decoder(8, fetch, decoder.unpack_pairs(8, 8, prepare, pair, value))
