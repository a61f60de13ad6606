"""GGUF Q5_0: 32 weights in 22 bytes, d (f16), 32 fifth bits, then 4 low bits each; w = d * (code - 16).

Device: "codes" (4 bits) and "scales" as in q4_0, and "high", the fifth bits, one word a lane.
"""

import numpy as np

from .format import (
    Format,
    blocks,
    f16,
    fragments,
    lanes_of,
    matrix,
    nibbles,
    pack_bits,
    pieces,
    row_scales,
    rows_of,
    unpack_bits,
)  # fmt: skip


def codes_of(b: np.ndarray) -> np.ndarray:
    """u8 [..., blocks, 22] -> codes 0..31 u8 [..., blocks, 32]."""
    high = np.unpackbits(b[..., 2:6], axis=-1, bitorder="little")
    return nibbles(b[..., 6:]) | high << 4


def decode(raw: np.ndarray) -> np.ndarray:
    """u8 [..., K/32*22] -> f32 [..., K]."""
    b = blocks(raw, 22)
    return (f16(b, 0) * (codes_of(b).astype(np.float32) - 16)).reshape(*raw.shape[:-1], -1)


def encode(values: np.ndarray) -> np.ndarray:
    """f32 [..., K] -> u8 [..., K/32*22]: the value of largest magnitude becomes code 0."""
    v = values.reshape(*values.shape[:-1], -1, 32)
    peak = np.take_along_axis(v, np.abs(v).argmax(-1)[..., None], -1)
    d = (peak / np.float32(-16)).astype(np.float32)
    inverse = np.divide(1, d, out=np.zeros_like(d), where=d != 0)
    codes = np.clip(np.trunc(v * inverse + np.float32(16.5)), 0, 31).astype(np.uint8)
    low = codes[..., :16] & 15 | (codes[..., 16:] & 15) << 4
    high = np.packbits(codes >> 4, axis=-1, bitorder="little")
    out = np.concatenate([d.astype(np.float16).view(np.uint8), high, low], -1)
    return out.reshape(*values.shape[:-1], -1)


def pack(raw: np.ndarray) -> tuple[np.ndarray, ...]:
    b = blocks(raw, 22)
    codes = fragments(codes_of(b).reshape(len(raw), -1))
    scales = np.ascontiguousarray(b[..., :2]).view(np.uint16)[..., 0]
    low, high = pieces(pack_bits(codes & 15, 4, 4)), pieces(pack_bits(codes >> 4, 1, 1))
    return low, row_scales(scales, 2), high


def unpack(planes: tuple[np.ndarray, ...], n: int, k: int) -> np.ndarray:
    low, high = unpack_bits(lanes_of(planes[0], 16), 4, 4), unpack_bits(lanes_of(planes[2], 4), 1, 1)
    d = rows_of(planes[1], np.float16, n, -(-k // 64), 2).astype(np.float32)
    return np.repeat(d, 32, 1)[:, :k] * (matrix(low | high << 4, n, k).astype(np.float32) - 16)


Q5_0 = Format(
    "q5_0", 32, 22, decode, pack, unpack, (("codes", 512), ("scales", 64), ("high", 128)),
    f"{__name__}:device_decoder", "q5_0", 6, None, encode,
)  # fmt: skip


def device_decoder():
    """7 registers: those of q4_0 and the fifth bits."""
    from numba import float32, int64, uint32

    from xinfer.kernels.cuda import decoder
    from xinfer.kernels.cuda.ptx import device, ld_stream32, ld_stream64, ld_stream128, mul_rn, sub_rn

    @device
    def fetch(p0, p1, p2, p3, tile, lane):
        c = ld_stream128(p0 + tile * 512 + int64(lane) * 16)
        d = ld_stream64(p1 + tile * 64 + int64(lane >> 2) * 8)
        h = ld_stream32(p2 + tile * 128 + int64(lane) * 4)
        return c[0], c[1], c[2], c[3], d[0], d[1], h

    @device
    def prepare(words, d):
        decoder.f16_pairs(words, 4, 2, d)

    low_pair = decoder.code_pair(0, 4, 4)

    @device
    def pair(words, s, j):
        return uint32(low_pair(words, s, j) | decoder.high_bits(words[6], s * 4 + j, 4, 0x100010))

    @device
    def value(code, d, s, half):
        return mul_rn(sub_rn(code, float32(128 + 16)), d[half * 2 + s // 2])

    return decoder.Decoder(7, fetch, decoder.unpack_pairs(7, 4, prepare, pair, value))
