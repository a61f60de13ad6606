"""What a model is, as data: no tensors, no maths. models/*.py write it, decoder.py and load/ read it.

House letters: D model dim, H query heads, G kv heads, E head dim, I ffn width, V vocabulary, R rotary dims.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from xinfer.errors import CheckpointError, UnsupportedError

T = TypeVar("T")
U = TypeVar("U")
PADDING = 64  # a feed-forward is padded to whole k-groups of the matmul kernels


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary embedding of the first `dims` (R) of each head, pair i = (x_i, x_{i+R/2}), by pos*freqs[i].

    `freqs`: R/2 inverse frequencies, f32 values. `scale`: factor of cos and sin (YaRN's attention factor)."""

    theta: float
    dims: int
    freqs: tuple[float, ...]
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class Attention:
    """`window`: a key j is seen from position p when p-window < j <= p; 0 is no limit. `qk_norm`: RMS norm of
    each head of q and k before the rotation. `bias`: of q, k and v; `out_bias`: of the output projection."""

    heads: int
    kv_heads: int
    head_dim: int
    rope: Rope
    scale: float
    window: int = 0
    qk_norm: bool = False
    bias: bool = False
    out_bias: bool = False


@dataclass(frozen=True, slots=True)
class Ffn:
    """act(gate(x)) * up(x) of `width` I, then down. `act`: "silu" or "gelu_tanh"."""

    width: int
    act: str = "silu"
    bias: bool = False

    @property
    def padded(self) -> int:
        """I as stored: rounded up to PADDING, the extra rows zero."""
        return -(-self.width // PADDING) * PADDING


@dataclass(frozen=True, slots=True)
class Layer:
    """`wiring`: "pre" (a norm before each branch) or "sandwich" (and another after it)."""

    attention: Attention
    ffn: Ffn
    wiring: str = "pre"


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """`tied`: the head is the embedding table. `one_plus_norms`: norm weights are stored as w-1.

    `max_len`: positions the model was made for. `stop_ids`: tokens that end a reply, by the configuration."""

    arch: str
    vocab: int
    dim: int
    eps: float
    layers: tuple[Layer, ...]
    tied: bool = False
    embed_scale: float = 1.0
    max_len: int = 0
    one_plus_norms: bool = False
    logit_softcap: float = 0.0
    stop_ids: tuple[int, ...] = ()
    bos_id: int | None = None


def tensor_shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """Canonical name -> shape of every tensor a checkpoint of this model must have, and no others."""
    shapes = {"embed": (spec.vocab, spec.dim), "norm": (spec.dim,)}
    if not spec.tied:
        shapes["head"] = (spec.vocab, spec.dim)
    for i, layer in enumerate(spec.layers):
        shapes |= {f"layers.{i}.{name}": shape for name, shape in _layer_shapes(layer, spec.dim).items()}
    return shapes


def _layer_shapes(layer: Layer, dim: int) -> dict[str, tuple[int, ...]]:
    a, width = layer.attention, layer.ffn.width
    q, kv = a.heads * a.head_dim, a.kv_heads * a.head_dim
    shapes = {"attn_norm": (dim,), "q": (q, dim), "k": (kv, dim), "v": (kv, dim), "o": (dim, q)}
    shapes |= {"ffn_norm": (dim,), "gate": (width, dim), "up": (width, dim), "down": (dim, width)}
    if a.bias:
        shapes |= {"q_bias": (q,), "k_bias": (kv,), "v_bias": (kv,)}
    if a.out_bias:
        shapes["o_bias"] = (dim,)
    if a.qk_norm:
        shapes |= {"q_norm": (a.head_dim,), "k_norm": (a.head_dim,)}
    if layer.wiring == "sandwich":
        shapes |= {"attn_post_norm": (dim,), "ffn_post_norm": (dim,)}
    return shapes


class Cfg:
    """Typed reads of a configuration. null counts as absent. Errors name the file, the key, what was found
    and what was wanted: CheckpointError for what cannot be, UnsupportedError (expect) for what cannot run."""

    def __init__(self, values: Mapping[str, object], where: str) -> None:
        self.values, self.where = values, where

    def need(self, key: str, kind: type[T]) -> T:
        """The value of a key that must be there, of type `kind`; a whole number will do for a float."""
        value = self.values.get(key)
        if value is None:
            raise CheckpointError(f"{self.where} has no {key!r} ({kind.__name__}): fetch the complete model")
        if kind is float and type(value) is int:
            return float(value)
        if type(value) is not kind:
            raise CheckpointError(
                f"{self.where}: {key!r} is {value!r} ({type(value).__name__}), wanted {kind.__name__}: "
                "fetch the model again"
            )
        return value

    def get(self, key: str, kind: type[T], default: U) -> T | U:
        return default if self.values.get(key) is None else self.need(key, kind)

    def size(self, key: str, default: int | None = None) -> int:
        """A whole number of at least 1."""
        value = self.need(key, int) if default is None else self.get(key, int, default)
        if value < 1:
            raise CheckpointError(
                f"{self.where}: {key!r} is {value}, wanted at least 1: fetch the model again"
            )
        return value

    def positive(self, key: str, default: float | None = None) -> float:
        """A finite number above 0."""
        value = self.need(key, float) if default is None else self.get(key, float, default)
        if not 0 < value < float("inf"):
            raise CheckpointError(f"{self.where}: {key!r} is {value}, wanted above 0: fetch the model again")
        return value

    def expect(self, key: str, *allowed: object) -> object:
        """The value of a key, one of `allowed`, of which the first stands for an absent key."""
        value = self.values.get(key)
        value = allowed[0] if value is None else value
        if value not in allowed:
            raise UnsupportedError(
                f"{self.where}: {key!r} is {value!r}, this version runs only {', '.join(map(repr, allowed))}"
            )
        return value

    def section(self, key: str) -> "Cfg":
        """The object under a key; empty when absent."""
        return Cfg(self.get(key, dict, {}), f"{self.where}: {key}")

    def ids(self, key: str) -> tuple[int, ...]:
        """Token ids: a number, a list of numbers, or absent."""
        value = self.values.get(key)
        listed = value if isinstance(value, list | tuple) else [] if value is None else [value]
        if any(type(token) is not int for token in listed):
            raise CheckpointError(
                f"{self.where}: {key!r} is {value!r}, wanted token ids: fetch the model again"
            )
        return tuple(token for token in listed if token >= 0)
