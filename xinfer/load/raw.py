"""A tensor as it lies in a file: its type, its shape, and its bytes, not yet read."""

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from xinfer.errors import CheckpointError


@dataclass(frozen=True, slots=True, eq=False)
class Raw:
    """`dtype`: the file's own word, "BF16" of safetensors or "Q4_K" of GGUF (then `ggml_type` is its number).
    `shape`: row-major, the last axis is K. `data`: u8 [nbytes], a view of the mapped file."""

    name: str
    dtype: str
    ggml_type: int | None
    shape: tuple[int, ...]
    data: np.ndarray

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def matrix(self) -> np.ndarray:
        """u8 [N, row bytes]: the rows, whose length in bytes depends on the type. A vector is one row."""
        rows = math.prod(self.shape[:-1])
        return self.data.reshape(rows, len(self.data) // rows if rows else 0)


def map_file(path: Path) -> np.ndarray:
    """u8 [size]: the file as read-only memory; pages are read when touched."""
    try:
        if path.stat().st_size == 0:
            raise CheckpointError(f"{path} is empty: fetch it again")
        return np.memmap(path, np.uint8, "r").view(np.ndarray)
    except FileNotFoundError as error:
        raise CheckpointError(f"no file {path}: check the path") from error
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error.strerror}): check its rights") from error
