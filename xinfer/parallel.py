"""Ranks: who holds which part of the model, and how partial results become whole. One process for now."""

from xinfer.formats.weight import Weight
from xinfer.ops import Ops
from xinfer.tensor import Tensor


class Solo:
    """One process that holds everything; other communicators give the same verbs a meaning among ranks."""

    rank = 0
    size = 1

    def add_linear(self, ops: Ops, out: Tensor, x: Tensor, weight: Weight, bias: Tensor | None) -> None:
        """out += x W^T + bias, W and x cut along K over the ranks (o and down); out f32 [T,N], whole on
        each."""
        ops.linear(out, x, weight, bias, add=True)

    def set_linear(self, ops: Ops, out: Tensor, x: Tensor, weight: Weight, bias: Tensor | None) -> None:
        """out = x W^T + bias, cut like add_linear's."""
        ops.linear(out, x, weight, bias)
