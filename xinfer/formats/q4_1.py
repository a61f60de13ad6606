"""GGUF Q4_1: 32 weights in 20 bytes, d and m (f16), then codes of 4 bits; w = d * code + m.

Device: "codes" as in q4_0, and "scales", f16 (d, m) of a row's two blocks in a tile.
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
    """u8 [..., K/32*20] -> f32 [..., K]."""
    b = blocks(raw, 20)
    values = f16(b, 0) * nibbles(b[..., 4:]).astype(np.float32) + f16(b, 2)
    return values.reshape(*raw.shape[:-1], -1)


def encode(values: np.ndarray) -> np.ndarray:
    """f32 [..., K] -> u8 [..., K/32*20]: the smallest value becomes code 0, the largest 15."""
    v = values.reshape(*values.shape[:-1], -1, 32)
    low, high = v.min(-1, keepdims=True), v.max(-1, keepdims=True)
    d = ((high - low) / np.float32(15)).astype(np.float32)
    inverse = np.divide(1, d, out=np.zeros_like(d), where=d != 0)
    codes = np.clip(np.trunc((v - low) * inverse + np.float32(0.5)), 0, 15).astype(np.uint8)
    packed = codes[..., :16] | codes[..., 16:] << 4
    parts = [d.astype(np.float16).view(np.uint8), low.astype(np.float16).view(np.uint8), packed]
    return np.concatenate(parts, -1).reshape(*values.shape[:-1], -1)


def pack(raw: np.ndarray) -> tuple[np.ndarray, ...]:
    b = blocks(raw, 20)
    codes = nibbles(b[..., 4:]).reshape(len(raw), -1)
    scales = np.ascontiguousarray(b[..., :4]).view(np.uint16)
    return pieces(pack_bits(fragments(codes), 4, 4)), row_scales(scales, 2)


def unpack(planes: tuple[np.ndarray, ...], n: int, k: int) -> np.ndarray:
    codes = matrix(unpack_bits(lanes_of(planes[0], 16), 4, 4), n, k)
    scales = rows_of(planes[1], np.float16, n, -(-k // 64), 2, 2).astype(np.float32)
    d, m = (np.repeat(scales[..., i], 32, 1)[:, :k] for i in range(2))
    return d * codes.astype(np.float32) + m


Q4_1 = Format(
    "q4_1", 32, 20, decode, pack, unpack, (("codes", 512), ("scales", 128)), f"{__name__}:device_decoder",
    "q4_1", 3, None, encode,
)  # fmt: skip


def device_decoder():
    """8 registers: a word of codes a step, then (d, m) of row g, blocks 0 and 1, and of row g+8."""
    from numba import float32, int64

    from xinfer.kernels.cuda import decoder
    from xinfer.kernels.cuda.ptx import device, fma_rn, ld_stream128, sub_rn

    @device
    def fetch(p0, p1, p2, p3, tile, lane):
        c = ld_stream128(p0 + tile * 512 + int64(lane) * 16)
        d = ld_stream128(p1 + tile * 128 + int64(lane >> 2) * 16)
        return c[0], c[1], c[2], c[3], d[0], d[1], d[2], d[3]

    @device
    def prepare(words, d):
        decoder.f16_pairs(words, 4, 4, d)

    @device
    def value(code, d, s, half):
        at = (
            half * 2 + s // 2
        ) * 2  # d * code is exact in f32, so the fused addition rounds as the plain one
        return fma_rn(sub_rn(code, float32(128)), d[at], d[at + 1])

    pair = decoder.code_pair(0, 4, 4)
    return decoder.Decoder(8, fetch, decoder.unpack_pairs(8, 8, prepare, pair, value))
