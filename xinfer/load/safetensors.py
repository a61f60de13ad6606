"""safetensors: one file, or a folder of shards. Format: u64 header length, JSON header, tensor bytes.

An own reader because the numpy binding of the library has no 8 and 4-bit types, and copies.
"""

import itertools
import json
import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from xinfer.errors import CheckpointError, UnsupportedError

from .raw import Raw, map_file

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
_MOST_HEADER = 100_000_000  # bytes, as in the reference implementation
BITS = {
    "F64": 64, "F32": 32, "F16": 16, "BF16": 16, "I64": 64, "U64": 64, "I32": 32, "U32": 32, "I16": 16,
    "U16": 16, "I8": 8, "U8": 8, "BOOL": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F4": 4,
}  # fmt: skip


class SafetensorsFile:
    """One file. `tensors`: name -> Raw; `metadata`: the strings under __metadata__.

    Raises CheckpointError for a missing, truncated or malformed file, UnsupportedError for a type not in
    BITS.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.data = map_file(self.path)
        header, start = self._header()
        self.metadata = header.pop("__metadata__", {})
        body = self.data[start:]
        self.tensors = {name: self._tensor(name, entry, body) for name, entry in header.items()}
        self._no_overlap(header)

    def _bad(self, what: str) -> CheckpointError:
        return CheckpointError(f"{self.path}: {what}: the file is damaged or incomplete, fetch it again")

    def _header(self) -> tuple[dict, int]:
        """The JSON object and the offset of the first tensor byte."""
        size = len(self.data)
        if size < 8:
            raise self._bad(f"{size} bytes are too few for a safetensors file")
        length = int(self.data[:8].view("<u8")[0])
        if length > min(size - 8, _MOST_HEADER):
            raise self._bad(f"its header takes {length:,} bytes, but only {size - 8:,} follow")
        try:
            header = json.loads(self.data[8 : 8 + length].tobytes().decode("utf-8"))
        except (ValueError, RecursionError) as error:
            raise self._bad(f"its header is not JSON ({error})") from error
        if not isinstance(header, dict):
            raise self._bad(f"its header is a JSON {type(header).__name__}, not an object")
        return header, 8 + length

    def _tensor(self, name: str, entry: object, body: np.ndarray) -> Raw:
        if not isinstance(entry, Mapping) or {"dtype", "shape", "data_offsets"} - entry.keys():
            raise self._bad(f"tensor {name!r} lacks dtype, shape or data_offsets")
        dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
        if not _naturals(shape) or not _naturals(offsets) or len(offsets) != 2:
            raise self._bad(f"tensor {name!r} has shape {shape!r} and data_offsets {offsets!r}")
        if not isinstance(dtype, str) or dtype not in BITS:
            raise UnsupportedError(
                f"{self.path}: tensor {name!r} is of type {dtype!r}; known: {', '.join(BITS)}: convert it"
            )
        start, stop = offsets
        wanted = math.prod(shape) * BITS[dtype]
        if not start <= stop <= len(body):
            raise self._bad(f"tensor {name!r} ends at byte {stop:,} of {len(body):,}")
        if wanted != 8 * (stop - start):
            raise self._bad(
                f"tensor {name!r} {dtype} {shape} has {stop - start:,} bytes, not {wanted // 8:,}"
            )
        return Raw(name, dtype, None, tuple(shape), body[start:stop])

    def _no_overlap(self, header: dict) -> None:
        spans = sorted((*entry["data_offsets"], name) for name, entry in header.items())
        spans = [span for span in spans if span[0] < span[1]]
        for (_, end, first), (start, _, second) in itertools.pairwise(spans):
            if start < end:
                raise self._bad(f"tensors {first!r} and {second!r} share bytes")


def _naturals(value: object) -> bool:
    return isinstance(value, list) and all(type(v) is int and v >= 0 for v in value)


def read_folder(folder: Path) -> dict[str, Raw]:
    """name -> Raw of a folder: the shards of its index, else model.safetensors, else every file there."""
    if (folder / INDEX).is_file():
        return _indexed(folder)
    files = [folder / SINGLE] if (folder / SINGLE).is_file() else sorted(folder.glob("*.safetensors"))
    if not files:
        raise CheckpointError(f"{folder} has no *.safetensors files: fetch the complete model")
    tensors: dict[str, Raw] = {}
    for file in files:
        part = SafetensorsFile(file).tensors
        if twice := sorted(tensors.keys() & part.keys()):
            raise CheckpointError(
                f"{file} repeats {len(twice)} tensors of another file, first {twice[0]!r}: keep only one "
                f"model in {folder}, or its {INDEX}"
            )
        tensors |= part
    return tensors


def _indexed(folder: Path) -> dict[str, Raw]:
    """The tensors that the index names, each from the shard it names."""
    path = folder / INDEX
    try:
        index = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not JSON ({error}): fetch it again") from error
    where = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(where, dict) or not where or not all(isinstance(f, str) for f in where.values()):
        raise CheckpointError(f"{path} has no weight_map of names to files: fetch it again")
    names = sorted(set(where.values()))
    if outside := [name for name in names if Path(name).name != name]:
        raise CheckpointError(f"{path} names a file outside its folder, {outside[0]!r}: fetch it again")
    if missing := [name for name in names if not (folder / name).is_file()]:
        listed = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
        raise CheckpointError(f"{folder} lacks {len(missing)} of {len(names)} shards: fetch {listed}")
    shards = {name: SafetensorsFile(folder / name).tensors for name in names}
    if lost := [tensor for tensor, name in where.items() if tensor not in shards[name]]:
        raise CheckpointError(
            f"{folder / where[lost[0]]} lacks {lost[0]!r}, which {INDEX} places there: fetch the shard again"
        )
    return {tensor: shards[name][tensor] for tensor, name in where.items()}
