"""The one transformer. Start reading here: a ModelSpec says what a model is, this says what is done with it.

    h = embed(tokens)                                   residual stream, f32
    for each layer:
        h += attention(norm(h)) W_o                     layers/attention.py
        h += feed_forward(norm(h)) W_down               layers/ffn.py
    logits = norm(h[wanted]) W_head

A "sandwich" layer normalises each branch once more before it is added. Ops (xinfer/ops.py) do all the maths
on whatever device they are bound to; nothing here allocates, waits or looks at a value.
"""

from collections.abc import Mapping

from xinfer.batch import Batch
from xinfer.kv.pool import LayerCache
from xinfer.layers import activations
from xinfer.layers.activations import Activations
from xinfer.layers.attention import AttentionLayer
from xinfer.layers.ffn import FeedForward
from xinfer.ops import Ops
from xinfer.parallel import Solo
from xinfer.spec import Layer, ModelSpec, Rope
from xinfer.tensor import DType, Tensor


class Block:
    """One layer: two branches added to the residual stream."""

    def __init__(
        self, layer: Layer, weights: Mapping, cos_sin: Tensor, eps: float, ops: Ops, comm: Solo
    ) -> None:
        self.ops, self.comm, self.eps = ops, comm, eps
        self.attention = AttentionLayer(layer.attention, weights, cos_sin, eps, ops)
        self.feed_forward = FeedForward(layer.ffn, weights, ops)
        self.norms = weights["attn_norm"], weights["ffn_norm"]
        self.post_norms = weights.get("attn_post_norm"), weights.get("ffn_post_norm")
        self.o, self.down, self.o_bias = weights["o"], weights["down"], weights.get("o_bias")

    def __call__(self, a: Activations, cache: LayerCache, batch: Batch) -> None:
        self.ops.rmsnorm(a.x, a.h, self.norms[0], self.eps)
        self.attention(a, cache, batch)
        self._add(a, a.attended, self.o, self.o_bias, self.post_norms[0])
        self.ops.rmsnorm(a.x, a.h, self.norms[1], self.eps)
        self.feed_forward(a)
        self._add(a, a.glu, self.down, None, self.post_norms[1])

    def _add(self, a: Activations, x: Tensor, weight, bias: Tensor | None, post_norm: Tensor | None) -> None:
        """h += x W^T, or h += norm(x W^T) where the layer has a norm after the branch."""
        if post_norm is None:
            self.comm.add_linear(self.ops, a.h, x, weight, bias)
        else:
            self.comm.set_linear(self.ops, a.branch, x, weight, bias)
            self.ops.rmsnorm_add(a.h, a.branch, post_norm, self.eps)


class Decoder:
    """A model bound to its weights, its cache and the ops of a device.

    `weights`: names of load/loader.py. `tables`: cos and sin of each distinct Rope, f32 [M,R].
    """

    def __init__(
        self,
        spec: ModelSpec,
        weights: Mapping,
        caches: list[LayerCache],
        tables: Mapping[Rope, Tensor],
        ops: Ops,
        act: DType,
        comm: Solo,
    ) -> None:
        self.spec, self.ops, self.act, self.caches = spec, ops, act, caches
        self.embed, self.norm, self.head = weights["embed"], weights["norm"], weights["head"]
        self.blocks = [
            Block(layer, _of_layer(weights, i), tables[layer.attention.rope], spec.eps, ops, comm)
            for i, layer in enumerate(spec.layers)
        ]

    def forward(self, arena, batch: Batch, last: Tensor) -> Tensor:
        """Logits f32 [N,V] of batch.logit_rows, at a fixed address; `last` i32 [S] holds each row's last
        token."""
        a = activations.take(arena, self.spec, self.act, batch.num_tokens, batch.num_logits)
        scale = self.spec.embed_scale
        self.ops.embed(a.h, batch.tokens, last, batch.token_rows, self.embed, scale)
        for block, cache in zip(self.blocks, self.caches):
            block(a, cache, batch)
        if batch.num_logits:
            self.ops.rmsnorm_rows(a.picked, a.h, batch.logit_rows, self.norm, self.spec.eps)
            self.ops.linear(a.logits, a.picked, self.head)
        return a.logits


def _of_layer(weights: Mapping, index: int) -> dict:
    prefix = f"layers.{index}."
    return {name.removeprefix(prefix): w for name, w in weights.items() if name.startswith(prefix)}
