"""plan(): what will be allocated, in bytes, before anything is. Integer arithmetic over the spec, the options
and the machine; the error when it does not fit names the numbers and the option to change."""

from dataclasses import dataclass

from xinfer.config import EngineConfig
from xinfer.errors import ConfigError, OutOfMemoryError
from xinfer.kv.pages import PAGE, pages_for
from xinfer.kv.pool import page_bytes
from xinfer.spec import ModelSpec
from xinfer.tensor import DType

RESERVE = {"cuda": 768 << 20, "cpu": 256 << 20}  # context, kernels, graphs; on the CPU the process itself
CPU_CONTEXT = 8192  # default max_model_len there: long contexts are a GPU's work


@dataclass(frozen=True, slots=True)
class Machine:
    """What a device has left before weights are placed."""

    kind: str
    free_bytes: int


@dataclass(frozen=True, slots=True)
class Plan:
    """Sizes of one engine. `act`: type of activations and cache; `max_tokens`: most tokens of a step."""

    act: DType
    max_model_len: int
    max_num_seqs: int
    prefill_chunk: int
    num_pages: int
    weight_bytes: int
    activation_bytes: int
    kv_bytes: int
    state_bytes: int
    free_bytes: int

    @property
    def max_tokens(self) -> int:
        return max(self.prefill_chunk, self.max_num_seqs)

    def table(self) -> str:
        """One line for each thing that takes memory."""
        rows = (
            ("weights", self.weight_bytes, ""),
            ("KV cache", self.kv_bytes, f"{self.num_pages} pages, {self.num_pages * PAGE:,} tokens"),
            ("activations", self.activation_bytes, f"{self.max_tokens} tokens a step"),
            ("sampler state", self.state_bytes, f"{self.max_num_seqs} requests"),
            ("free", self.free_bytes - sum((self.weight_bytes, self.kv_bytes, self.activation_bytes)), ""),
        )
        return "\n".join(
            f"{name:<14}{nbytes / 2**30:8.2f} GiB  {note}".rstrip() for name, nbytes, note in rows
        )


def plan(
    spec: ModelSpec,
    config: EngineConfig,
    machine: Machine,
    act: DType,
    weight_bytes: int,
    activation_bytes: int,
) -> Plan:
    """Sizes from what was asked. `activation_bytes`: of the arena for max_tokens(config) tokens."""
    longest = config.max_model_len or _default_length(spec, machine)
    if longest > spec.max_len:
        raise ConfigError(
            f"max_model_len {longest} is more than the {spec.max_len} positions the model was made "
            "for: lower it"
        )
    rows = config.max_num_seqs
    state = rows * (2 * spec.vocab + 4 * pages_for(longest) + 2560)
    fixed = weight_bytes + activation_bytes + state + RESERVE[machine.kind]
    left = machine.free_bytes - fixed
    page = page_bytes(spec, act) + _split_bytes(spec, act)
    useful = rows * pages_for(longest)  # more pages than this could never be in use
    if config.kv_tokens is not None:
        pages = pages_for(config.kv_tokens)
    else:
        pages = min(useful, int(max(left, 0) * config.kv_memory_fraction) // page)
    if pages * page > left or pages < 1:
        raise OutOfMemoryError(
            f"{machine.free_bytes:,} bytes free; weights take {weight_bytes:,}, activations "
            f"{activation_bytes:,}, "
            f"state and reserve {state + RESERVE[machine.kind]:,}, and {max(pages, 1)} pages of KV cache "
            f"{max(pages, 1) * page:,}: lower kv_tokens, max_num_seqs or prefill_chunk, or use "
            "a smaller model"
        )
    if config.max_model_len is not None and pages < pages_for(longest):
        raise OutOfMemoryError(
            f"the KV cache has room for {pages * PAGE:,} tokens and max_model_len is {longest:,}: lower it, "
            "or raise kv_tokens or kv_memory_fraction"
        )
    return Plan(
        act=act,
        max_model_len=min(longest, pages * PAGE),
        max_num_seqs=rows,
        prefill_chunk=config.chunk(machine.kind),
        num_pages=pages,
        weight_bytes=weight_bytes,
        activation_bytes=activation_bytes,
        kv_bytes=pages * page,
        state_bytes=state,
        free_bytes=machine.free_bytes,
    )


def _default_length(spec: ModelSpec, machine: Machine) -> int:
    return min(spec.max_len, CPU_CONTEXT) if machine.kind == "cpu" else spec.max_len


def _split_bytes(spec: ModelSpec, act: DType) -> int:
    """Scratch of a page for the states of decode attention (kernels/cuda/attention.py), shared by the
    layers."""
    states = (a.heads * (a.head_dim + 4) * 4 for a in (layer.attention for layer in spec.layers))
    return max(states) if act is DType.BF16 else 0


def step_tokens(config: EngineConfig, kind: str) -> int:
    """Most tokens of one step: a whole prefill chunk, or a token of every request."""
    return max(config.chunk(kind), config.max_num_seqs)
