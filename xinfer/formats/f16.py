"""f16 in the file; on the device bf16, as every weight is in a matmul."""

import numpy as np

from . import bf16
from .format import Format, bf16_bits


def decode(raw: np.ndarray) -> np.ndarray:
    """u8 [..., 2K] -> f32 [..., K]."""
    return np.ascontiguousarray(raw).view(np.float16).astype(np.float32)


def encode(values: np.ndarray) -> np.ndarray:
    """f32 [..., K] -> u8 [..., 2K], to nearest even."""
    return np.ascontiguousarray(values.astype(np.float16)).view(np.uint8)


def pack(raw: np.ndarray) -> tuple[np.ndarray, ...]:
    return bf16.pack_bits16(bf16_bits(decode(raw)))


F16 = Format("f16", 1, 2, decode, pack, bf16.unpack, bf16.BITS, bf16.DECODER, "bf16", 1, "F16", encode)
