"""A tensor is an address with a shape. It has no maths: that is what ops are for."""

import ctypes
import enum
import math
from dataclasses import dataclass

import numpy as np


class DType(enum.Enum):
    """Element type: (tag, bytes, numpy type that carries it on the host; bf16 travels as its 16 bits)."""

    F32 = ("f32", 4, np.float32)
    F16 = ("f16", 2, np.float16)
    BF16 = ("bf16", 2, np.uint16)
    I64 = ("i64", 8, np.int64)
    U64 = ("u64", 8, np.uint64)
    I32 = ("i32", 4, np.int32)
    U32 = ("u32", 4, np.uint32)
    U16 = ("u16", 2, np.uint16)
    U8 = ("u8", 1, np.uint8)

    @property
    def tag(self) -> str:
        return self.value[0]

    @property
    def itemsize(self) -> int:
        return self.value[1]

    @property
    def numpy(self) -> type:
        return self.value[2]


@dataclass(frozen=True, slots=True)
class Tensor:
    """`shape` elements of `dtype` at address `ptr`, rows of the leading axis `ld` elements apart (default:
    dense).

    `owner` keeps the memory alive (an allocation, an mmap, a numpy array); views share it.
    """

    ptr: int
    shape: tuple[int, ...]
    dtype: DType
    ld: int = 0
    owner: object = None

    def __post_init__(self) -> None:
        if not self.ld:
            object.__setattr__(self, "ld", math.prod(self.shape[1:]))

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    @property
    def dense(self) -> bool:
        return self.ld == math.prod(self.shape[1:])

    def rows(self, start: int, stop: int) -> "Tensor":
        """Rows [start, stop) of the leading axis."""
        assert 0 <= start <= stop <= self.shape[0], (self.shape, start, stop)
        ptr = self.ptr + start * self.ld * self.dtype.itemsize
        return Tensor(ptr, (stop - start, *self.shape[1:]), self.dtype, self.ld, self.owner)

    def columns(self, start: int, stop: int) -> "Tensor":
        """Columns [start, stop) of a matrix; the row distance stays."""
        assert len(self.shape) == 2 and 0 <= start <= stop <= self.shape[1], (self.shape, start, stop)
        ptr = self.ptr + start * self.dtype.itemsize
        return Tensor(ptr, (self.shape[0], stop - start), self.dtype, self.ld, self.owner)

    def view(self, shape: tuple[int, ...], dtype: DType | None = None) -> "Tensor":
        """The same dense memory with another shape or type; never more bytes than before."""
        dtype = dtype or self.dtype
        assert self.dense and math.prod(shape) * dtype.itemsize <= self.nbytes, (self.shape, shape)
        return Tensor(self.ptr, tuple(shape), dtype, 0, self.owner)

    def numpy(self) -> np.ndarray:
        """A numpy view; only for memory that the host can address."""
        rows = self.shape[0] if self.shape else 1
        last = math.prod(self.shape[1:])
        count = (rows - 1) * self.ld + last if rows else 0
        if count == 0:
            return np.empty(self.shape, self.dtype.numpy)
        raw = (ctypes.c_uint8 * (count * self.dtype.itemsize)).from_address(self.ptr)
        flat = np.frombuffer(raw, self.dtype.numpy)
        if self.dense:
            return flat.reshape(self.shape)
        step = self.dtype.itemsize
        return np.lib.stride_tricks.as_strided(flat, self.shape, (self.ld * step, step))


def host_tensor(array: np.ndarray, dtype: DType | None = None) -> Tensor:
    """A tensor over a C-contiguous numpy array, which it keeps alive."""
    assert array.flags.c_contiguous, "only contiguous arrays have a plain address"
    tags = {np.dtype(d.numpy): d for d in DType if d is not DType.BF16}
    return Tensor(array.ctypes.data, array.shape, dtype or tags[array.dtype], 0, array)
