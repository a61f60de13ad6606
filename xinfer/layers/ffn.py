"""The dense feed-forward: act(gate(x)) * up(x), up to, but not including, the down projection."""

from collections.abc import Mapping

from xinfer.layers.activations import Activations
from xinfer.ops import Ops
from xinfer.spec import Ffn


class FeedForward:
    """Gate and up rows are interleaved in runs of 8 in one weight, so that one matmul ends in the product."""

    def __init__(self, spec: Ffn, weights: Mapping, ops: Ops) -> None:
        self.act, self.glu, self.ops = spec.act, weights["glu"], ops

    def __call__(self, a: Activations) -> None:
        """a.x [T,D] -> a.glu [T,I]."""
        self.ops.linear_glu(a.glu, a.x, self.glu, self.act)
