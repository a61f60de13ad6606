"""EngineConfig: what was asked, frozen and checked, before any file is opened or any byte is planned."""

import dataclasses
import difflib
from collections.abc import Iterable
from dataclasses import dataclass

from xinfer.errors import ConfigError

DEVICES = ("auto", "cuda", "cpu")
DTYPES = ("auto", "bf16", "f32")
LOAD_FORMATS = ("auto", "dummy")
KVCACHE_DTYPES = ("auto",)
PREFILL_CHUNK = {"cuda": 4096, "cpu": 512}
PREFILL_STEP = 32  # chunks are whole multiples; results do not depend on where their borders are


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Options of an Engine. None means "chosen when the model and the machine are known".

    m                   a .gguf file, a folder of safetensors, or a Hugging Face id
    device              auto takes the GPU when there is one
    dtype               of activations and KV cache; auto is bf16 on a GPU and f32 on the CPU
    load_format         dummy fills the weights with seeded noise and needs only the model's configuration
    max_model_len       most tokens of one request, prompt and reply together
    max_num_seqs        most requests that run at once
    prefill_chunk       most prompt tokens of a step; by device kind, never by free memory, see chunk()
    kv_memory_fraction  share of the memory left after the weights that the KV cache takes
    kv_tokens           its size in tokens instead
    kvcache_dtype       auto is the dtype above
    seed                of requests without their own
    graphs              replay decode steps as CUDA graphs
    skip_tokenizer      do without tokenizer files: prompts are token ids, replies have no text
    served_model_name   how the server calls the model
    """

    m: str
    device: str = "auto"
    dtype: str = "auto"
    load_format: str = "auto"
    max_model_len: int | None = None
    max_num_seqs: int = 8
    prefill_chunk: int | None = None
    kv_memory_fraction: float = 0.9
    kv_tokens: int | None = None
    kvcache_dtype: str = "auto"
    seed: int = 0
    graphs: bool = True
    skip_tokenizer: bool = False
    served_model_name: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.m, str) or not self.m.strip():
            raise ConfigError(f"m must name a model (a path or a Hugging Face id), not {self.m!r}")
        _one_of("device", self.device, DEVICES)
        _one_of("dtype", self.dtype, DTYPES)
        _one_of("load_format", self.load_format, LOAD_FORMATS)
        _one_of("kvcache_dtype", self.kvcache_dtype, KVCACHE_DTYPES)
        _whole("max_model_len", self.max_model_len, 2, 1 << 30, optional=True)
        _whole("max_num_seqs", self.max_num_seqs, 1, 4096)
        _whole("prefill_chunk", self.prefill_chunk, PREFILL_STEP, 1 << 20, optional=True)
        _whole("kv_tokens", self.kv_tokens, 64, 1 << 40, optional=True)
        _whole("seed", self.seed, 0, (1 << 64) - 1)
        if self.prefill_chunk is not None and self.prefill_chunk % PREFILL_STEP:
            below = self.prefill_chunk // PREFILL_STEP * PREFILL_STEP
            raise ConfigError(
                f"prefill_chunk must be a multiple of {PREFILL_STEP}, not {self.prefill_chunk}: "
                f"use {below} or {below + PREFILL_STEP}"
            )
        fraction = self.kv_memory_fraction
        if isinstance(fraction, bool) or not isinstance(fraction, int | float) or not 0 < fraction <= 1:
            raise ConfigError(f"kv_memory_fraction must be above 0 and at most 1, not {fraction!r}")
        for name in ("graphs", "skip_tokenizer"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"{name} must be True or False, not {getattr(self, name)!r}")
        if self.served_model_name is not None and not isinstance(self.served_model_name, str):
            raise ConfigError(f"served_model_name must be text, not {self.served_model_name!r}")
        if self.device == "cpu" and self.dtype == "bf16":
            raise ConfigError("dtype bf16 needs a GPU: the CPU computes in f32, use dtype auto or f32")

    @classmethod
    def of(cls, **options: object) -> "EngineConfig":
        """A config from keywords; an unknown one is a ConfigError that names the closest."""
        known = [field.name for field in dataclasses.fields(cls)]
        for name in options:
            if name not in known:
                raise ConfigError(f"unknown option {name!r}{did_you_mean(name, known)}")
        if "m" not in options:
            raise ConfigError("no model given: m must be a path or a Hugging Face id")
        return cls(**options)

    def chunk(self, device_kind: str) -> int:
        """Tokens of a prefill chunk on "cuda" or "cpu"."""
        return self.prefill_chunk if self.prefill_chunk is not None else PREFILL_CHUNK[device_kind]


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The end of an error message: "; did you mean 'x'?", or nothing when nothing is close."""
    near = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def _one_of(name: str, value: object, accepted: tuple[str, ...]) -> None:
    if value not in accepted:
        hint = did_you_mean(value, accepted) if isinstance(value, str) else ""
        raise ConfigError(f"{name} must be one of {', '.join(accepted)}, not {value!r}{hint}")


def _whole(name: str, value: object, low: int, high: int, *, optional: bool = False) -> None:
    if value is None and optional:
        return
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"{name} must be a whole number, not {value!r}")
    if not low <= value <= high:
        limit = f"at least {low}" if value < low else f"at most {high}"
        raise ConfigError(f"{name} must be {limit}, not {value}")
