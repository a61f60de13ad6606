"""GGUF Q6_K: 256 weights in 210 bytes, codes of 6 bits in two parts, a signed scale for each 16, d (f16);
w = (d * scale) * (code - 32).

Device: "codes" (4 low bits) as in q4_0; "high" (2 bits), two words a lane; "scales", the i8 of a row's four
steps in a tile; "super scales", f16 d of each row and 256 k.
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


def codes_of(b: np.ndarray) -> np.ndarray:
    """u8 [..., blocks, 210] -> codes 0..63 u8 [..., blocks, 256]."""
    ql = b[..., :128].reshape(*b.shape[:-1], 2, 1, 64)
    low = np.concatenate([ql & 15, ql >> 4], -2).reshape(*b.shape[:-1], 256)
    qh = b[..., 128:192].reshape(*b.shape[:-1], 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8)[:, None]
    return low | (qh & 3).reshape(*b.shape[:-1], 256) << 4


def decode(raw: np.ndarray) -> np.ndarray:
    """u8 [..., K/256*210] -> f32 [..., K]."""
    b = blocks(raw, 210)
    scales = f16(b, 208) * np.ascontiguousarray(b[..., 192:208]).view(np.int8).astype(np.float32)
    values = np.repeat(scales, 16, -1) * (codes_of(b).astype(np.float32) - 32)
    return values.reshape(*raw.shape[:-1], -1)


def pack(raw: np.ndarray) -> tuple[np.ndarray, ...]:
    b = blocks(raw, 210)
    codes = fragments(codes_of(b).reshape(len(raw), -1))
    scales = b[..., 192:208].reshape(len(raw), -1)
    supers = np.ascontiguousarray(b[..., 208:]).view(np.uint16)[..., 0]
    low, high = pieces(pack_bits(codes & 15, 4, 4)), pieces(pack_bits(codes >> 4, 2, 2))
    return low, high, row_scales(scales, 4), row_scales(supers, 1)


def unpack(planes: tuple[np.ndarray, ...], n: int, k: int) -> np.ndarray:
    low, high = unpack_bits(lanes_of(planes[0], 16), 4, 4), unpack_bits(lanes_of(planes[1], 8), 2, 2)
    scales = rows_of(planes[2], np.int8, n, k // 64, 4).astype(np.float32)
    d = rows_of(planes[3], np.float16, n, k // 256, 1).astype(np.float32)
    scales = np.repeat(np.repeat(d, 16, 1) * scales, 16, 1)
    return scales * (matrix(low | high << 4, n, k).astype(np.float32) - 32)


Q6_K = Format(
    "q6_k", 256, 210, decode, pack, unpack,
    (("codes", 512), ("high", 256), ("step scales", 64), ("super scales", 8)),
    f"{__name__}:device_decoder", "q6_k", 14,
)  # fmt: skip


def device_decoder():
    """9 registers: a word of low bits a step, two of high bits, scales of rows g and g+8, their two d.

    (d * scale) * (code - 32) may need 25 bits: two roundings, as in the definition.
    """
    from numba import float32, int64, uint32

    from xinfer.kernels.cuda import decoder
    from xinfer.kernels.cuda.ptx import (
        device,
        f16_hi_to_f32,
        f16_lo_to_f32,
        ld_stream32,
        ld_stream64,
        ld_stream128,
        mul_rn,
        sub_rn,
    )  # fmt: skip

    @device
    def fetch(p0, p1, p2, p3, tile, lane):
        row = int64(lane >> 2)
        c = ld_stream128(p0 + tile * 512 + int64(lane) * 16)
        h = ld_stream64(p1 + tile * 256 + int64(lane) * 8)
        s = ld_stream64(p2 + tile * 64 + row * 8)
        d = ld_stream32(p3 + (tile >> 2) * 32 + row * 4)
        return c[0], c[1], c[2], c[3], h[0], h[1], s[0], s[1], d

    @device
    def prepare(words, out):
        d0, d1 = f16_lo_to_f32(words[8]), f16_hi_to_f32(words[8])
        for s in range(4):
            out[s] = mul_rn(d0, float32(decoder.signed_byte(words[6], s)))
            out[4 + s] = mul_rn(d1, float32(decoder.signed_byte(words[7], s)))

    low_pair = decoder.code_pair(0, 4, 4)

    @device
    def pair(words, s, j):
        high = decoder.high_bits(words[4 + s // 2], ((s & 1) * 4 + j) * 2, 4, 0x300030)
        return uint32(low_pair(words, s, j) | high)

    @device
    def value(code, d, s, half):
        return mul_rn(sub_rn(code, float32(128 + 32)), d[half * 4 + s])

    return decoder.Decoder(9, fetch, decoder.unpack_pairs(9, 8, prepare, pair, value))
