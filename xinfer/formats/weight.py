"""A weight matrix on a device: planes of bytes and the format that can read them, or dense f32."""

from dataclasses import dataclass

from xinfer.tensor import Tensor

from .format import Format


@dataclass(frozen=True, slots=True)
class Weight:
    """W[N,K], padding included. `planes`: fragment order, in bf16 mode; `dense`: f32 [N,K] otherwise."""

    format: Format
    n: int
    k: int
    planes: tuple[Tensor, ...]
    dense: Tensor | None = None

    @property
    def nbytes(self) -> int:
        return self.dense.nbytes if self.dense is not None else sum(plane.nbytes for plane in self.planes)
