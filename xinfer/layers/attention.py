"""Attention over the paged cache: project, normalise and rotate, write keys and values, attend, project
back."""

from collections.abc import Mapping

from xinfer.batch import Batch
from xinfer.kv.pool import LayerCache
from xinfer.layers.activations import Activations
from xinfer.ops import Ops
from xinfer.spec import Attention
from xinfer.tensor import Tensor


class AttentionLayer:
    """One layer's attention up to, but not including, the output projection.

    `weights` are the layer's own (names of load/loader.py without "layers.i."); cos_sin f32 [M,R].
    """

    def __init__(self, spec: Attention, weights: Mapping, cos_sin: Tensor, eps: float, ops: Ops) -> None:
        self.spec, self.cos_sin, self.eps, self.ops = spec, cos_sin, eps, ops
        qkv = weights["qkv"]
        self.qkv = qkv if isinstance(qkv, tuple) else (qkv,)  # parts of different formats come one by one
        self.bias = weights.get("qkv_bias")
        self.q_norm, self.k_norm = weights.get("q_norm"), weights.get("k_norm")

    def __call__(self, a: Activations, cache: LayerCache, batch: Batch) -> None:
        """a.x [T,D] -> a.attended [T,HE]; a.qkv and a.q are overwritten."""
        ops, spec = self.ops, self.spec
        start = 0
        for part in self.qkv:
            bias = self.bias.rows(start, start + part.n) if self.bias is not None else None
            ops.linear(a.qkv.columns(start, start + part.n), a.x, part, bias)
            start += part.n
        ops.rope_kv(
            a.q, cache.keys, cache.values, a.qkv, self.cos_sin, batch.positions, batch.kv_slots,
            self.q_norm, self.k_norm, self.eps,
        )  # fmt: skip
        ops.attention(
            a.attended, a.q, cache.keys, cache.values, batch.page_table, batch.q_start, batch.kv_len,
            spec.scale, spec.window,
        )  # fmt: skip
