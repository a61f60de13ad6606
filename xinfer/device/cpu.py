"""The CPU as a device: memory is numpy arrays, work is done when the call returns, graphs are absent."""

import os
import platform
import time
from contextlib import AbstractContextManager

import numpy as np

from xinfer.errors import OutOfMemoryError
from xinfer.tensor import DType, Tensor

from .base import ALIGNMENT, FILLS, Graph
from .host import host_memory

_CHUNK = 1 << 20  # words of a fill made at a time


class CpuEvent:
    """A moment of host time."""

    def __init__(self) -> None:
        self.moment = 0.0

    def record(self, stream: int | None = None) -> None:
        self.moment = time.perf_counter()

    def wait(self, stream: int | None = None) -> None:
        pass

    def done(self) -> bool:
        return True

    def synchronize(self) -> None:
        pass

    def seconds_since(self, start: "CpuEvent") -> float:
        return self.moment - start.moment

    def close(self) -> None:
        pass


class CpuDevice:
    """See device/base.py. Memory is given back when the last tensor over it goes."""

    kind = "cpu"
    sm = 0
    target = 0
    supports_graphs = False
    stream = 0
    copy_stream = 0

    def __init__(self) -> None:
        self.name = platform.processor() or platform.machine() or "CPU"
        self.processors = os.cpu_count() or 1

    @property
    def total_bytes(self) -> int:
        return host_memory()[0]

    @property
    def free_bytes(self) -> int:
        return host_memory()[1]

    def alloc(self, nbytes: int, what: str = "") -> Tensor:
        """u8 [nbytes]; pages that are never touched cost nothing."""
        try:
            owner = np.empty(nbytes + ALIGNMENT, np.uint8)
        except (MemoryError, ValueError) as error:
            total, available = host_memory()
            raise OutOfMemoryError(
                f"host memory for {what or 'a tensor'}: {nbytes:,} bytes asked, {available:,} of {total:,} "
                "available; use a smaller model, context length or batch"
            ) from error
        ptr = -(-owner.ctypes.data // ALIGNMENT) * ALIGNMENT
        return Tensor(ptr, (nbytes,), DType.U8, 0, owner)

    def host_alloc(self, nbytes: int, *, mapped: bool = False, what: str = "") -> Tensor:
        tensor = self.alloc(nbytes, what)
        self.zero(tensor)
        return tensor

    def mapped(self, tensor: Tensor) -> Tensor:
        return tensor

    def free(self, tensor: Tensor) -> None:
        pass

    def upload(self, dst: Tensor, array: np.ndarray) -> None:
        assert dst.dense and dst.nbytes == array.nbytes, (dst.shape, dst.dtype, array.shape, array.dtype)
        flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        dst.view((dst.nbytes,), DType.U8).numpy()[:] = flat

    def download(self, src: Tensor) -> np.ndarray:
        return src.numpy().copy()

    def copy(self, dst: Tensor, src: Tensor, *, stream: int | None = None) -> None:
        assert dst.dense and src.dense and dst.nbytes == src.nbytes, (dst.shape, src.shape)
        dst.view((dst.nbytes,), DType.U8).numpy()[:] = src.view((src.nbytes,), DType.U8).numpy()

    def zero(self, tensor: Tensor, *, stream: int | None = None) -> None:
        assert tensor.dense, tensor.shape
        tensor.view((tensor.nbytes,), DType.U8).numpy()[:] = 0

    def fill_random(self, tensor: Tensor, seed: int, *, kind: str = "") -> None:
        assert tensor.dense, tensor.shape
        out = tensor.view((tensor.nbytes,), DType.U8).numpy()
        for start in range(0, tensor.nbytes, 4 * _CHUNK):
            part = out[start : start + 4 * _CHUNK]
            words = pattern(kind or FILLS.get(tensor.dtype, "bytes"), start // 4, -(-len(part) // 4), seed)
            part[:] = words.view(np.uint8)[: len(part)]

    def synchronize(self, stream: int | None = None) -> None:
        pass

    def event(self, *, timing: bool = False) -> CpuEvent:
        return CpuEvent()

    def capture(self) -> AbstractContextManager[Graph]:
        raise AssertionError("the CPU has no graphs; ask supports_graphs first")

    def use(self) -> None:
        pass

    def close(self) -> None:
        pass

    def __enter__(self) -> "CpuDevice":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _mix(x: np.ndarray) -> np.ndarray:
    """MurmurHash3's 32-bit finalizer, u32 -> u32."""
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    x = (x ^ (x >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return x ^ (x >> np.uint32(16))


def _hash(element: np.ndarray, seed: int) -> np.ndarray:
    """u32 of each element index (u64) and the seed."""
    base = _mix(np.array([seed & 0xFFFFFFFF], np.uint32))
    high = _mix((element >> np.uint64(32)).astype(np.uint32) + base)
    return _mix(_mix(element.astype(np.uint32) ^ high) + base)


def _normal(element: np.ndarray, seed: int) -> np.ndarray:
    """f32: the sum of a hash's four bytes, centred, scaled to deviation 0.02 (Irwin-Hall, within 3.5
    deviations)."""
    hashed = _hash(element, seed)
    total = sum(((hashed >> np.uint32(8 * i)) & np.uint32(255)).astype(np.int32) for i in range(4))
    return (total - 510).astype(np.float32) * np.float32(0.02 / 147.8)


def pattern(kind: str, start: int, count: int, seed: int) -> np.ndarray:
    """u32 words start..start+count of a fill: the NumPy meaning of kernels/cuda/fill.py, bit for bit."""
    word = np.arange(start, start + count, dtype=np.uint64)
    if kind == "f32":
        return _normal(word, seed).view(np.uint32)
    if kind == "bf16":
        low, high = (_normal(word * np.uint64(2) + np.uint64(i), seed).view(np.uint32) for i in range(2))
        low, high = (
            (v + np.uint32(0x7FFF) + ((v >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
            for v in (low, high)
        )
        return low | (high << np.uint32(16))
    if kind == "scales":
        return (_hash(word, seed) & np.uint32(0x03FF03FF)) | np.uint32(0x14001400)
    assert kind == "bytes", f"no fill {kind!r}"
    return _hash(word, seed)
