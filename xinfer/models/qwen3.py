"""Qwen3 (dense): Llama with a norm of each head of q and k before the rotation."""

from xinfer.models.llama import dense_spec
from xinfer.spec import Cfg, ModelSpec


def spec(cfg: Cfg) -> ModelSpec:
    bias = cfg.get("attention_bias", bool, False)
    return dense_spec(cfg, bias=bias, out_bias=bias, qk_norm=True)
