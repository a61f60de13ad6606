"""The architectures: model_type of a configuration -> how its spec is read, what its tensors are called."""

from collections.abc import Callable
from dataclasses import dataclass

from xinfer.errors import UnsupportedError
from xinfer.models import gemma3, llama, qwen2, qwen3
from xinfer.spec import Cfg, ModelSpec


@dataclass(frozen=True, slots=True)
class Architecture:
    """`names`: canonical name -> name in safetensors, "{i}" being the layer. `ignore`: patterns (fnmatch) of
    tensors that old checkpoints carry and nobody needs."""

    spec: Callable[[Cfg], ModelSpec]
    names: dict[str, str]
    ignore: tuple[str, ...] = ("*.rotary_emb.inv_freq",)


ARCHITECTURES = {
    "llama": Architecture(llama.spec, llama.NAMES),
    "qwen2": Architecture(qwen2.spec, llama.NAMES),
    "qwen3": Architecture(qwen3.spec, llama.NAMES),
    "gemma3_text": Architecture(gemma3.spec, gemma3.NAMES),
}


def architecture(cfg: Cfg) -> Architecture:
    """The architecture of a configuration; UnsupportedError lists the known ones."""
    kind = cfg.need("model_type", str)
    if kind not in ARCHITECTURES:
        raise UnsupportedError(
            f"{cfg.where}: architecture {kind!r} is not supported; known: {', '.join(ARCHITECTURES)}"
        )
    for name in cfg.get("architectures", list, []):
        if not str(name).endswith("ForCausalLM"):
            raise UnsupportedError(f"{cfg.where}: {name} is not a text generator (wanted a ...ForCausalLM)")
    return ARCHITECTURES[kind]
