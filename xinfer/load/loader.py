"""From a checkpoint to weights on a device.

Names the decoder uses: "embed" and "head" (one object when tied), "norm"; in each layer "layers.i.": "qkv"
(rows of q, k and v below each other; a tuple of weights where their formats differ), "o", "glu" (gate and up
interleaved in runs of 8, I padded to 64), "down" (K padded likewise), norms and biases as f32 vectors,
"qkv_bias" joined.

Two forms: packed planes of the file's own format, or (CPU, and f32 anywhere) dense f32. All lie in one
allocation. Threads turn pieces of a few megabytes into their final form: the host never holds more.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from xinfer.device.base import ALIGNMENT, Device
from xinfer.errors import OutOfMemoryError
from xinfer.formats.weight import Weight
from xinfer.spec import ModelSpec
from xinfer.tensor import DType, Tensor

from .checkpoint import Checkpoint
from .fuse import Entry, Fuser, dummy_entries, file_entries

_PIECE = 4 << 20  # weights one thread turns at a time
_MOST_THREADS = 16
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, eq=False)
class Weights(Mapping):
    """name -> Weight, tuple of Weights, or f32 Tensor [n]. `memory` holds them all, `nbytes` of it."""

    by_name: dict[str, Weight | tuple[Weight, ...] | Tensor]
    memory: Tensor
    nbytes: int

    def __getitem__(self, name: str) -> Weight | tuple[Weight, ...] | Tensor:
        return self.by_name[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.by_name)

    def __len__(self) -> int:
        return len(self.by_name)


@dataclass(frozen=True, slots=True, eq=False)
class _Placed:
    """An entry and where it goes: its planes, or one f32 tensor [n,k] or [n]."""

    entry: Entry
    tensors: tuple[Tensor, ...]
    dense: bool

    def weight(self) -> Weight | Tensor:
        entry = self.entry
        if entry.vector:
            return self.tensors[0]
        if self.dense:
            return Weight(entry.format, entry.n, entry.k, (), self.tensors[0])
        return Weight(entry.format, entry.n, entry.k, self.tensors, None)


def load_weights(
    checkpoint: Checkpoint, device: Device, act: DType, progress: Progress | None = None
) -> Weights:
    """Every weight of the checkpoint on the device. `progress(bytes_done, bytes_total)` as pieces arrive.

    Raises UnsupportedError for a tensor type without a format, OutOfMemoryError when it cannot fit."""
    dense = _is_dense(device.kind, act)
    placed, memory = _place(file_entries(checkpoint, dense), device, dense)
    fuser = Fuser(checkpoint)
    pieces = [(item, start, stop) for item in placed for start, stop in _pieces(item.entry)]
    total, done = sum(t.nbytes for item in placed for t in item.tensors), 0
    pool = ThreadPoolExecutor(min(_MOST_THREADS, os.cpu_count() or 1), thread_name_prefix="load")
    try:
        for nbytes in pool.map(lambda piece: _load(device, fuser, *piece), pieces):
            done += nbytes
            if progress:
                progress(done, total)
    except BaseException:
        pool.shutdown(cancel_futures=True)
        device.free(memory)
        raise
    pool.shutdown()
    return _collect(placed, memory, checkpoint.spec)


def dummy_weights(spec: ModelSpec, device: Device, act: DType, format: str = "bf16") -> Weights:
    """Weights of the same structure from seeded noise made on the device; norms are 1 and biases 0."""
    dense = _is_dense(device.kind, act)
    placed, memory = _place(dummy_entries(spec, format, dense), device, dense)
    for index, item in enumerate(placed):
        if item.entry.vector:
            value = 0.0 if item.entry.name.endswith("bias") else 1.0
            device.upload(item.tensors[0], np.full(item.entry.n, value, np.float32))
            continue
        for number, tensor in enumerate(item.tensors):
            device.fill_random(tensor, 16 * index + number, kind=_noise(item, number))
    return _collect(placed, memory, spec)


def weight_bytes(source: Checkpoint | ModelSpec, device_kind: str, act: DType, format: str = "bf16") -> int:
    """Device bytes that load_weights of a checkpoint, or dummy_weights of a spec, will take."""
    dense = _is_dense(device_kind, act)
    if isinstance(source, ModelSpec):
        entries = dummy_entries(source, format, dense)
    else:
        entries = file_entries(source, dense)
    return sum(_aligned(nbytes) for entry in entries for nbytes in entry.sizes(dense))


def _is_dense(device_kind: str, act: DType) -> bool:
    return device_kind == "cpu" or act is DType.F32


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def _place(entries: list[Entry], device: Device, dense: bool) -> tuple[list[_Placed], Tensor]:
    """One allocation for all entries, each tensor at a multiple of ALIGNMENT."""
    total = sum(_aligned(nbytes) for entry in entries for nbytes in entry.sizes(dense))
    free = device.free_bytes
    if total > free:
        raise OutOfMemoryError(
            f"the weights take {total:,} bytes, {free:,} of {device.total_bytes:,} are free on "
            f"{device.name}: use a smaller or more quantised model, or end other programs there"
        )
    memory, at, placed = device.alloc(total, "weights"), 0, []
    for entry in entries:
        tensors = []
        for nbytes in entry.sizes(dense):
            tensors.append(memory.rows(at, at + nbytes))
            at += _aligned(nbytes)
        if entry.vector or dense:
            shape = (entry.n,) if entry.vector else (entry.n, entry.k)
            tensors = [tensors[0].view(shape, DType.F32)]
        placed.append(_Placed(entry, tuple(tensors), dense))
    return placed, memory


def _pieces(entry: Entry) -> Iterator[tuple[int, int]]:
    """Row ranges of about _PIECE weights, whole tiles of 16 rows."""
    if entry.vector:
        yield 0, entry.n
        return
    step = max(1, _PIECE // (entry.k * 16)) * 16
    for start in range(0, entry.n, step):
        yield start, min(start + step, entry.n)


def _load(device: Device, fuser: Fuser, item: _Placed, start: int, stop: int) -> int:
    """Rows start..stop of one entry; the bytes written."""
    entry = item.entry
    if entry.vector:
        device.upload(item.tensors[0], fuser.vector(entry))
        return item.tensors[0].nbytes
    if item.dense:
        rows = item.tensors[0].rows(start, stop)
        device.upload(rows, fuser.decoded(entry, start, stop))
        return rows.nbytes
    tiles, first, last = -(-entry.n // 16), start // 16, -(-stop // 16)
    written = 0
    packed = entry.format.pack(fuser.raw_rows(entry, start, stop))
    for plane, array in zip(item.tensors, packed, strict=True):
        # A plane is one row of tiles after the other, so that a range of rows is a range of bytes.
        assert plane.nbytes % tiles == 0, (entry.name, entry.format.name, plane.nbytes, tiles)
        each = plane.nbytes // tiles
        device.upload(plane.rows(first * each, last * each), array)
        written += (last - first) * each
    return written


def _noise(item: _Placed, number: int) -> str:
    """The fill of a tensor: values where it holds values, small f16 where it holds scales, else any bytes."""
    if item.dense:
        return "f32"
    plane = item.entry.format.planes(item.entry.n, item.entry.k)[number].name
    return "bf16" if plane == "values" else "scales" if "scale" in plane else "bytes"


def _collect(placed: list[_Placed], memory: Tensor, spec: ModelSpec) -> Weights:
    by_name: dict[str, Weight | tuple[Weight, ...] | Tensor] = {}
    for item in placed:
        weight = item.weight()
        if item.entry.name not in by_name:
            by_name[item.entry.name] = weight
            continue
        before = by_name[item.entry.name]
        by_name[item.entry.name] = (*(before if isinstance(before, tuple) else (before,)), weight)
    if spec.tied:
        by_name["head"] = by_name["embed"]
    return Weights(by_name, memory, memory.nbytes)
