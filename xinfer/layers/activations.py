"""Every intermediate of a step, by name and shape. Planned once for the largest step, then at fixed
addresses."""

from dataclasses import dataclass

from xinfer.device.arena import Arena
from xinfer.spec import ModelSpec
from xinfer.tensor import DType, Tensor


@dataclass(frozen=True, slots=True)
class Activations:
    """`act` is the type of matmul inputs (bf16 on a GPU, f32 otherwise); the residual stream is always f32.

    h         f32 [T,D]         residual stream
    x         act [T,D]         normed input of a matmul
    qkv       f32 [T,(H+2G)E]   as projected
    q         act [T,H,E]       normed and rotated
    attended  act [T,HE]        attention's output
    glu       act [T,I]         gated activation of the feed-forward, I padded to 64
    branch    f32 [T,D]         a branch's output where a norm comes before the addition (sandwich)
    picked    act [N,D]         normed rows whose logits are wanted
    logits    f32 [N,V]
    """

    h: Tensor
    x: Tensor
    qkv: Tensor
    q: Tensor
    attended: Tensor
    glu: Tensor
    branch: Tensor
    picked: Tensor
    logits: Tensor


def take(arena: Arena, spec: ModelSpec, act: DType, tokens: int, logits: int) -> Activations:
    """The tensors of a step of `tokens` tokens and `logits` logit rows; before commit, their record in the
    plan.

    qkv shares memory with glu: it is used up when the feed-forward begins.
    """
    f32, t = DType.F32, tokens
    qkv = max((a.heads + 2 * a.kv_heads) * a.head_dim for a in (layer.attention for layer in spec.layers))
    heads, dim = max((a.heads, a.head_dim) for a in (layer.attention for layer in spec.layers))
    width = max(layer.ffn.padded for layer in spec.layers)
    return Activations(
        h=arena.take("h", (t, spec.dim), f32),
        x=arena.take("x", (t, spec.dim), act),
        qkv=arena.take("qkv", (t, qkv), f32, overlay="wide"),
        q=arena.take("q", (t, heads, dim), act),
        attended=arena.take("attended", (t, heads * dim), act),
        glu=arena.take("glu", (t, width), act, overlay="wide"),
        branch=arena.take("branch", (t, spec.dim), f32),
        picked=arena.take("picked", (logits, spec.dim), act),
        logits=arena.take("logits", (logits, spec.vocab), f32),
    )
