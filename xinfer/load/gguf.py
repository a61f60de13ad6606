"""GGUF files, versions 2 and 3, single or split. Only the type table comes from the `gguf` package.

Its reader takes 10 s for a vocabulary of 150,000 (it walks every list in Python); this one takes 0.1 s.
"""

import math
import re
import struct
from pathlib import Path

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from xinfer.errors import CheckpointError, UnsupportedError

from .raw import Raw, map_file

MAGIC = b"GGUF"
_ALIGNMENT = "general.alignment"
_MOST_DIMS = 4
_MOST_NESTING = 4
# Metadata types by number; 8 is a string, 9 an array.
_SCALARS = {
    0: "u1", 1: "i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "?", 10: "<u8", 11: "<i8",
    12: "<f8",
}  # fmt: skip
_STRING, _ARRAY = 8, 9
_SPLIT_NAME = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf")


class _Cursor:
    """Reads the head of a file from front to back; running off its end is a CheckpointError."""

    def __init__(self, path: Path, data: np.ndarray) -> None:
        self.path, self.data, self.view, self.at = path, data, memoryview(data), 0

    def bad(self, what: str) -> CheckpointError:
        return CheckpointError(f"{self.path}: {what}: the file is damaged or incomplete, fetch it again")

    def take(self, count: int) -> memoryview:
        if count > len(self.view) - self.at:
            raise self.bad(f"it ends at byte {len(self.view):,}, {count:,} more were needed at {self.at:,}")
        self.at += count
        return self.view[self.at - count : self.at]

    def u32(self) -> int:
        return int.from_bytes(self.take(4), "little")

    def u64(self) -> int:
        return int.from_bytes(self.take(8), "little")

    def name(self, what: str) -> str:
        try:
            return str(self.take(self.u64()), "utf-8")
        except UnicodeDecodeError as error:
            raise self.bad(f"{what} is not UTF-8") from error

    def value(self, kind: int, key: str, depth: int = 0) -> object:
        """A metadata value of the given type number; text that is not UTF-8 gets replacement characters."""
        if kind == _STRING:
            return str(self.take(self.u64()), "utf-8", "replace")
        if kind == _ARRAY:
            if depth == _MOST_NESTING:
                raise self.bad(f"metadata {key!r} is nested too deep")
            inner, count = self.u32(), self.u64()
            if inner == _STRING:
                return self._strings(count)
            if inner == _ARRAY:
                return [self.value(_ARRAY, key, depth + 1) for _ in range(count)]
            return self._scalars(inner, count, key).tolist()
        return self._scalars(kind, 1, key).tolist()[0]

    def _scalars(self, kind: int, count: int, key: str) -> np.ndarray:
        if kind not in _SCALARS:
            raise self.bad(f"metadata {key!r} is of unknown type {kind}")
        dtype = np.dtype(_SCALARS[kind])
        return np.frombuffer(self.take(count * dtype.itemsize), dtype)

    def _strings(self, count: int) -> list[str]:
        """The hot loop: a vocabulary and its merges are half a million strings."""
        view, at, out = self.view, self.at, []
        length = struct.Struct("<Q").unpack_from
        try:
            for _ in range(count):
                end = at + 8 + length(view, at)[0]
                out.append(str(view[at + 8 : end], "utf-8", "replace"))
                at = end
        except (struct.error, OverflowError, IndexError) as error:
            raise self.bad(f"it ends inside a list of {count:,} strings at byte {self.at:,}") from error
        self.take(at - self.at)
        return out


class GgufFile:
    """A model in GGUF. `metadata`: key -> value (lists for arrays); `tensors`: name -> Raw, shapes row-major.

    Any part of a split model opens all of it. Raises CheckpointError for a missing, truncated or malformed
    file, UnsupportedError for a version or a tensor type this reader does not know.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.metadata, self.tensors = _read(self.path)
        count = self.metadata.get("split.count", 1)
        if isinstance(count, int) and count > 1:
            self._join(count)

    def _join(self, count: int) -> None:
        """Metadata of the first part, tensors of all."""
        name = _SPLIT_NAME.fullmatch(self.path.name)
        if name is None or int(name[3]) != count:
            raise CheckpointError(
                f"{self.path} is one of {count} parts but is not called NAME-0000N-of-{count:05}.gguf: "
                "give the parts their names back"
            )
        parts = [self.path.with_name(f"{name[1]}-{i:05}-of-{count:05}.gguf") for i in range(1, count + 1)]
        if missing := [part.name for part in parts if not part.is_file()]:
            raise CheckpointError(
                f"{self.path.parent} lacks {len(missing)} of {count} parts, first {missing[0]}: fetch them"
            )
        self.metadata, self.tensors = _read(parts[0])
        for part in parts[1:]:
            tensors = _read(part)[1]
            if twice := sorted(self.tensors.keys() & tensors.keys()):
                raise CheckpointError(
                    f"{part} repeats tensor {twice[0]!r} of an earlier part: fetch both again"
                )
            self.tensors |= tensors
        total = self.metadata.get("split.tensors.count", len(self.tensors))
        if total != len(self.tensors):
            raise CheckpointError(
                f"{self.path}: {count} parts with {len(self.tensors)} tensors, not {total}: fetch them again"
            )


def _read(path: Path) -> tuple[dict[str, object], dict[str, Raw]]:
    """Metadata and tensors of one file."""
    cursor = _Cursor(path, map_file(path))
    magic = bytes(cursor.take(min(4, len(cursor.view))))
    if magic != MAGIC:
        raise CheckpointError(f"{path} is not a GGUF file (it begins with {magic!r}): check the path")
    version = cursor.u32()
    if version not in (2, 3):
        big = " (big-endian)" if version in (2 << 24, 3 << 24) else ""
        raise UnsupportedError(f"{path} is GGUF version {version}{big}; 2 and 3 are read: convert it again")
    num_tensors, num_keys = cursor.u64(), cursor.u64()
    metadata: dict[str, object] = {}
    for _ in range(num_keys):
        key = cursor.name("a metadata key")
        if key in metadata:
            raise cursor.bad(f"metadata {key!r} is there twice")
        metadata[key] = cursor.value(cursor.u32(), key)
    infos = [_info(cursor) for _ in range(num_tensors)]
    alignment = metadata.get(_ALIGNMENT, 32)
    if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
        raise cursor.bad(f"{_ALIGNMENT} is {alignment!r}, not a power of two")
    base = -(-cursor.at // alignment) * alignment
    tensors: dict[str, Raw] = {}
    for name, ne, kind, offset in infos:
        if name in tensors:
            raise cursor.bad(f"tensor {name!r} is there twice")
        if offset % alignment:
            raise cursor.bad(f"tensor {name!r} begins at {offset:,}, not a multiple of {alignment}")
        tensors[name] = _tensor(cursor, name, ne, kind, base + offset)
    return metadata, tensors


def _info(cursor: _Cursor) -> tuple[str, list[int], int, int]:
    """(name, ne fastest axis first, type number, offset) of one tensor."""
    name = cursor.name("a tensor name")
    dims = cursor.u32()
    if dims > _MOST_DIMS:
        raise cursor.bad(f"tensor {name!r} has {dims} axes, at most {_MOST_DIMS} are possible")
    ne = [cursor.u64() for _ in range(dims)]
    return name, ne, cursor.u32(), cursor.u64()


def _tensor(cursor: _Cursor, name: str, ne: list[int], kind: int, start: int) -> Raw:
    try:
        kind_ = GGMLQuantizationType(kind)
        block, block_bytes = GGML_QUANT_SIZES[kind_]
    except (ValueError, KeyError) as error:
        raise UnsupportedError(
            f"{cursor.path}: tensor {name!r} is of unknown type {kind}: convert the model to a known type"
        ) from error
    row = ne[0] if ne else 1
    if row % block:
        raise cursor.bad(f"tensor {name!r} {kind_.name} has rows of {row}, not a multiple of {block}")
    stop = start + math.prod(ne) // block * block_bytes
    if stop > len(cursor.data):
        raise cursor.bad(f"tensor {name!r} ends at byte {stop:,}, the file has {len(cursor.data):,}")
    return Raw(name, kind_.name, kind, tuple(reversed(ne)), cursor.data[start:stop])
