"""Which tensors of a file become which weight, and the fused rows themselves, in any range.

A fused weight is a list of (source, row) pairs: that covers rows below each other (qkv), interleaved rows
(glu), rows in another order (q and k of Llama in GGUF) and rows of zeros (padding) alike.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from xinfer.errors import UnsupportedError
from xinfer.formats import FORMATS, by_ggml_type, by_safetensors
from xinfer.formats.bf16 import BF16
from xinfer.formats.format import Format
from xinfer.spec import Ffn, ModelSpec, tensor_shapes

from .checkpoint import Checkpoint
from .names import pair_to_half
from .raw import Raw

RUN = 8  # rows of gate, then as many of up
_FLOATS = ("F32", "F16", "BF16")
_VECTORS = ("attn_norm", "q_norm", "k_norm", "attn_post_norm", "ffn_norm", "ffn_post_norm", "o_bias")


@dataclass(frozen=True, slots=True)
class Entry:
    """One weight [n,k] in `format`, or (`format` None, k 1) one f32 vector [n], of tensors `sources`.

    `order`: "stack" puts their rows below each other, "glu" interleaves two in runs of RUN. n and k count
    the padding of the feed-forward. Entries of one name are the parts of a tuple."""

    name: str
    sources: tuple[str, ...]
    n: int
    k: int = 1
    format: Format | None = None
    order: str = "stack"

    @property
    def vector(self) -> bool:
        return self.format is None

    def sizes(self, dense: bool) -> list[int]:
        """Bytes of each tensor it becomes: one of f32, or the planes of its format."""
        if self.vector or dense:
            return [4 * self.n * self.k]
        return [plane.nbytes for plane in self.format.planes(self.n, self.k)]


def format_of(raw: Raw) -> Format:
    """The format of a tensor in a file; UnsupportedError names both."""
    found = by_safetensors(raw.dtype) if raw.ggml_type is None else by_ggml_type(raw.ggml_type)
    if found is None:
        raise UnsupportedError(
            f"tensor {raw.name!r} is {raw.dtype}, which is not supported; known: {', '.join(FORMATS)}"
        )
    return found


def file_entries(checkpoint: Checkpoint, dense: bool) -> list[Entry]:
    """What the tensors of a checkpoint become."""
    return _entries(checkpoint.spec, lambda name: format_of(checkpoint.tensors[name]), dense)


def dummy_entries(spec: ModelSpec, format: str, dense: bool) -> list[Entry]:
    """The same with all matrices in one format, given by its name."""
    if format not in FORMATS:
        raise UnsupportedError(f"no weight format {format!r}; known: {', '.join(FORMATS)}")
    return _entries(spec, lambda name: FORMATS[format], dense)


def _entries(spec: ModelSpec, format: Callable[[str], Format], dense: bool) -> list[Entry]:
    shapes = tensor_shapes(spec)

    def matrix(name: str, columns: int = 0) -> Entry:
        n, k = shapes[name]
        return Entry(name, (name,), n, columns or k, format(name))

    entries = [matrix("embed"), Entry("norm", ("norm",), spec.dim)]
    if not spec.tied:
        entries.append(matrix("head"))
    for i, layer in enumerate(spec.layers):
        at = f"layers.{i}."
        entries += _stacked(at + "qkv", [matrix(at + name) for name in "qkv"], dense)
        entries += [matrix(at + "o"), _glu(at, layer.ffn, spec.dim, format, dense)]
        entries.append(matrix(at + "down", layer.ffn.padded))
        entries += [
            Entry(at + name, (at + name,), *shapes[at + name]) for name in _VECTORS if at + name in shapes
        ]
        if layer.attention.bias:
            names = tuple(f"{at}{name}_bias" for name in "qkv")
            entries.append(Entry(at + "qkv_bias", names, sum(shapes[name][0] for name in names)))
    return entries


def _stacked(name: str, parts: list[Entry], dense: bool) -> list[Entry]:
    """Parts below each other: one entry for each run of equal formats, one for all when they become dense."""
    runs = [list(run) for _, run in groupby(parts, lambda part: "" if dense else part.format.name)]
    return [
        Entry(name, tuple(part.sources[0] for part in run), sum(p.n for p in run), run[0].k, run[0].format)
        for run in runs
    ]


def _glu(at: str, ffn: Ffn, dim: int, format: Callable[[str], Format], dense: bool) -> Entry:
    """Gate and up of different formats meet in bf16."""
    sources = (at + "gate", at + "up")
    gate, up = map(format, sources)
    common = gate if gate is up or dense else BF16
    return Entry(at + "glu", sources, 2 * ffn.padded, dim, common, "glu")


class Fuser:
    """Reads rows of fused weights out of a checkpoint's files. Any thread."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint

    def vector(self, entry: Entry) -> np.ndarray:
        """f32 [n], 1 added where norms are stored as w-1."""
        values = np.concatenate([self._vector(name) for name in entry.sources])
        one_plus = self.checkpoint.spec.one_plus_norms and entry.name.endswith("norm")
        return values + np.float32(1) if one_plus else values

    def raw_rows(self, entry: Entry, start: int, stop: int) -> np.ndarray:
        """u8 [stop-start, row bytes] in the entry's format."""
        out = np.zeros((stop - start, entry.format.row_bytes(entry.k)), np.uint8)
        for where, format, rows in self._gather(entry, start, stop):
            rows = rows if format is entry.format else BF16.encode(format.decode(rows))
            out[where, : rows.shape[1]] = rows
        return out

    def decoded(self, entry: Entry, start: int, stop: int) -> np.ndarray:
        """f32 [stop-start, k]."""
        out = np.zeros((stop - start, entry.k), np.float32)
        for where, format, rows in self._gather(entry, start, stop):
            values = format.decode(rows)
            out[where, : values.shape[1]] = values
        return out

    def _gather(self, entry: Entry, start: int, stop: int) -> list[tuple[np.ndarray, Format, np.ndarray]]:
        """(indices into the range, format, u8 rows) of each source that has rows in it; the rest is zero."""
        source, row = self._index(entry, start, stop)
        found = []
        for number, name in enumerate(entry.sources):
            where = np.flatnonzero((source == number) & (row >= 0))
            if len(where):
                raw = self.checkpoint.tensors[name]
                found.append((where, format_of(raw), raw.matrix()[row[where]]))
        return found

    def _index(self, entry: Entry, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """(number of the source, its row or -1) of fused rows start..stop, both i64."""
        fused = np.arange(start, stop)
        counts = [self.checkpoint.tensors[name].shape[0] for name in entry.sources]
        if entry.order == "glu":
            source, row = fused // RUN % 2, fused // (2 * RUN) * RUN + fused % RUN
            return source, np.where(row < counts[0], row, -1)
        ends = np.cumsum(counts)
        source = np.searchsorted(ends, fused, side="right")
        row = fused - (ends - counts)[source]
        for number, name in enumerate(entry.sources):
            if (order := self._row_order(name)) is not None:
                row[source == number] = order[row[source == number]]
        return source, row

    def _row_order(self, name: str) -> np.ndarray | None:
        """The row in the file of each row of a q or k that was stored in pair order."""
        *layer, short = name.split(".")
        if not self.checkpoint.pair_rows or short.removesuffix("_bias") not in ("q", "k"):
            return None
        head_dim = self.checkpoint.spec.layers[int(layer[1])].attention.head_dim
        return pair_to_half(self.checkpoint.tensors[name].shape[0], head_dim)

    def _vector(self, name: str) -> np.ndarray:
        raw = self.checkpoint.tensors[name]
        if raw.dtype not in _FLOATS:
            raise UnsupportedError(f"tensor {raw.name!r} is {raw.dtype}, wanted one of {', '.join(_FLOATS)}")
        values = format_of(raw).decode(raw.data)
        order = self._row_order(name)
        return values if order is None else values[order]
