"""f32 in the file; on the device f32 where the engine computes in f32, else bf16."""

import numpy as np

from . import bf16
from .format import Format, bf16_bits


def decode(raw: np.ndarray) -> np.ndarray:
    """u8 [..., 4K] -> f32 [..., K]."""
    return np.ascontiguousarray(raw).view(np.float32)


def encode(values: np.ndarray) -> np.ndarray:
    """f32 [..., K] -> u8 [..., 4K]."""
    return np.ascontiguousarray(values, np.float32).view(np.uint8)


def pack(raw: np.ndarray) -> tuple[np.ndarray, ...]:
    return bf16.pack_bits16(bf16_bits(decode(raw)))


F32 = Format("f32", 1, 4, decode, pack, bf16.unpack, bf16.BITS, bf16.DECODER, "bf16", 0, "F32", encode)
