"""GGUF Q8_0: 32 weights in 34 bytes, d (f16), then signed codes of 8 bits; w = d * code.

Device: "codes", bytes code + 128 in two pieces of 16 a lane (piece p: steps 2p, 2p+1), and "scales" as in
q4_0.
"""

import numpy as np

from .format import Format, blocks, f16, fragments, lanes_of, matrix, pieces, row_scales, rows_of


def decode(raw: np.ndarray) -> np.ndarray:
    """u8 [..., K/32*34] -> f32 [..., K]."""
    b = blocks(raw, 34)
    return (f16(b, 0) * b[..., 2:].view(np.int8).astype(np.float32)).reshape(*raw.shape[:-1], -1)


def encode(values: np.ndarray) -> np.ndarray:
    """f32 [..., K] -> u8 [..., K/32*34]: the largest magnitude becomes 127; halves go away from zero."""
    v = values.reshape(*values.shape[:-1], -1, 32)
    d = (np.abs(v).max(-1, keepdims=True) / np.float32(127)).astype(np.float32)
    scaled = v * np.divide(1, d, out=np.zeros_like(d), where=d != 0)
    codes = (np.sign(scaled) * np.floor(np.abs(scaled) + np.float32(0.5))).astype(np.int8)
    out = np.concatenate([d.astype(np.float16).view(np.uint8), codes.view(np.uint8)], -1)
    return out.reshape(*values.shape[:-1], -1)


def pack(raw: np.ndarray) -> tuple[np.ndarray, ...]:
    b = blocks(raw, 34)
    lanes = fragments((b[..., 2:] ^ 128).reshape(len(raw), -1))
    scales = np.ascontiguousarray(b[..., :2]).view(np.uint16)[..., 0]
    return pieces(np.ascontiguousarray(lanes).reshape(-1, 32, 32)), row_scales(scales, 2)


def unpack(planes: tuple[np.ndarray, ...], n: int, k: int) -> np.ndarray:
    codes = matrix(lanes_of(planes[0], 32), n, k).astype(np.float32) - 128
    d = rows_of(planes[1], np.float16, n, -(-k // 64), 2).astype(np.float32)
    return np.repeat(d, 32, 1)[:, :k] * codes


Q8_0 = Format(
    "q8_0", 32, 34, decode, pack, unpack, (("codes", 1024), ("scales", 64)), f"{__name__}:device_decoder",
    "q8_0", 8, None, encode,
)  # fmt: skip


def device_decoder():
    """10 registers: two words of bytes a step, register j of step s in word 2s + j/2, then d as in q4_0."""
    from numba import cuda, float32, int64, uint32

    from xinfer.kernels.cuda import decoder
    from xinfer.kernels.cuda.ptx import (
        device,
        f32_of_bits,
        gather,
        ld_stream64,
        ld_stream128,
        mul_rn,
        pack_bf16x2,
        prmt,
        scatter,
        sub_rn,
    )  # fmt: skip

    put, take = scatter(10), gather(16)

    @device
    def fetch(p0, p1, p2, p3, tile, lane):
        at = p0 + tile * 1024 + int64(lane) * 16
        a, b = ld_stream128(at), ld_stream128(at + 512)
        d = ld_stream64(p1 + tile * 64 + int64(lane >> 2) * 8)
        return a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3], d[0], d[1]

    @device
    def value(word, byte, d):
        """Byte 0x4B0000bb is the f32 2^23 + b."""
        bits = prmt(word, uint32(0x4B000000), uint32(0x7440 | byte))
        return mul_rn(sub_rn(f32_of_bits(bits), float32(8388608 + 128)), d)

    @device
    def unpack(registers, lane):
        words = cuda.local.array(10, uint32)
        d = cuda.local.array(4, float32)
        out = cuda.local.array(16, uint32)
        put(words, 0, registers)
        decoder.f16_pairs(words, 8, 2, d)
        for s in range(4):
            for j in range(4):
                word, at, scale = words[s * 2 + j // 2], (j & 1) * 2, d[(j & 1) * 2 + s // 2]
                out[s * 4 + j] = pack_bf16x2(value(word, at, scale), value(word, at + 1, scale))
        return take(out, 0)

    return decoder.Decoder(10, fetch, unpack)
