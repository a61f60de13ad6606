"""GGUF Q4_0: 32 weights in 18 bytes, d (f16), then codes of 4 bits; w = d * (code - 8).

Device: "codes", one u32 a step and lane (format.pack_bits), and "scales", f16 d of a row's two blocks in a
tile.
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


def decode(raw: np.ndarray) -> np.ndarray:
    """u8 [..., K/32*18] -> f32 [..., K]."""
    b = blocks(raw, 18)
    values = f16(b, 0) * (nibbles(b[..., 2:]).astype(np.float32) - 8)
    return values.reshape(*raw.shape[:-1], -1)


def encode(values: np.ndarray) -> np.ndarray:
    """f32 [..., K] -> u8 [..., K/32*18]: the value of largest magnitude becomes code 0."""
    v = values.reshape(*values.shape[:-1], -1, 32)
    peak = np.take_along_axis(v, np.abs(v).argmax(-1)[..., None], -1)
    d = (peak / np.float32(-8)).astype(np.float32)
    inverse = np.divide(1, d, out=np.zeros_like(d), where=d != 0)
    codes = np.clip(np.trunc(v * inverse + np.float32(8.5)), 0, 15).astype(np.uint8)
    packed = codes[..., :16] | codes[..., 16:] << 4
    out = np.concatenate([d.astype(np.float16).view(np.uint8), packed], -1)
    return out.reshape(*values.shape[:-1], -1)


def pack(raw: np.ndarray) -> tuple[np.ndarray, ...]:
    b = blocks(raw, 18)
    codes = nibbles(b[..., 2:]).reshape(len(raw), -1)
    scales = np.ascontiguousarray(b[..., :2]).view(np.uint16)[..., 0]
    return pieces(pack_bits(fragments(codes), 4, 4)), row_scales(scales, 2)


def unpack(planes: tuple[np.ndarray, ...], n: int, k: int) -> np.ndarray:
    codes = matrix(unpack_bits(lanes_of(planes[0], 16), 4, 4), n, k)
    d = rows_of(planes[1], np.float16, n, -(-k // 64), 2).astype(np.float32)
    return np.repeat(d, 32, 1)[:, :k] * (codes.astype(np.float32) - 8)


Q4_0 = Format(
    "q4_0", 32, 18, decode, pack, unpack, (("codes", 512), ("scales", 64)), f"{__name__}:device_decoder",
    "q4_0", 2, None, encode,
)  # fmt: skip


def device_decoder():
    """6 registers: a word of codes a step, then d of (row g, blocks 0, 1) and (row g+8, blocks 0, 1)."""
    from numba import float32, int64

    from xinfer.kernels.cuda import decoder
    from xinfer.kernels.cuda.ptx import device, ld_stream64, ld_stream128, mul_rn, sub_rn

    @device
    def fetch(p0, p1, p2, p3, tile, lane):
        c = ld_stream128(p0 + tile * 512 + int64(lane) * 16)
        d = ld_stream64(p1 + tile * 64 + int64(lane >> 2) * 8)
        return c[0], c[1], c[2], c[3], d[0], d[1]

    @device
    def prepare(words, d):
        decoder.f16_pairs(words, 4, 2, d)

    @device
    def value(code, d, s, half):
        return mul_rn(sub_rn(code, float32(128 + 8)), d[half * 2 + s // 2])

    pair = decoder.code_pair(0, 4, 4)
    return decoder.Decoder(6, fetch, decoder.unpack_pairs(6, 4, prepare, pair, value))
