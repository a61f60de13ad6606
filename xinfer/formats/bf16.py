"""bf16: the upper half of an f32. On the device a lane's piece p of a tile holds its 8 weights of step p."""

import numpy as np

from .format import Format, bf16_bits, bf16_values, fragments, lanes_of, matrix, pieces

DECODER = f"{__name__}:device_decoder"
BITS = (("values", 2048),)


def decode(raw: np.ndarray) -> np.ndarray:
    """u8 [..., 2K] -> f32 [..., K]."""
    return bf16_values(np.ascontiguousarray(raw).view(np.uint16))


def encode(values: np.ndarray) -> np.ndarray:
    """f32 [..., K] -> u8 [..., 2K], to nearest even."""
    return bf16_bits(values).view(np.uint8)


def pack(raw: np.ndarray) -> tuple[np.ndarray, ...]:
    return pack_bits16(np.ascontiguousarray(raw).view(np.uint16))


def pack_bits16(values: np.ndarray) -> tuple[np.ndarray, ...]:
    """bf16 bits u16 [N,K] -> the plane; formats that become bf16 on the device use it, too."""
    lanes = np.ascontiguousarray(fragments(values)).view(np.uint8)
    return (pieces(lanes.reshape(-1, 32, 64)),)


def unpack(planes: tuple[np.ndarray, ...], n: int, k: int) -> np.ndarray:
    lanes = np.ascontiguousarray(lanes_of(planes[0], 64)).view(np.uint16)
    return bf16_values(matrix(lanes, n, k))


BF16 = Format("bf16", 1, 2, decode, pack, unpack, BITS, DECODER, "bf16", 30, "BF16", encode)


def device_decoder():
    """16 registers a tile, which are the fragments themselves."""
    from numba import int64

    from xinfer.kernels.cuda.decoder import Decoder
    from xinfer.kernels.cuda.ptx import device, ld_stream128

    @device
    def fetch(p0, p1, p2, p3, tile, lane):
        at = p0 + tile * 2048 + int64(lane) * 16
        a, b = ld_stream128(at), ld_stream128(at + 512)
        c, d = ld_stream128(at + 1024), ld_stream128(at + 1536)
        return (
            a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3],
            c[0], c[1], c[2], c[3], d[0], d[1], d[2], d[3],
        )  # fmt: skip

    @device
    def unpack(raw, lane):
        return raw

    return Decoder(16, fetch, unpack)
