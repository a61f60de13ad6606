"""Qwen2 and Qwen2.5: Llama with biases of q, k and v."""

from xinfer.models.llama import dense_spec
from xinfer.spec import Cfg, ModelSpec


def spec(cfg: Cfg) -> ModelSpec:
    return dense_spec(cfg, bias=True)
