"""Gemma 3 (text): sandwich norms of 1+w, scaled embeddings, five layers with a window to one without."""

import math

import numpy as np

from xinfer.models import llama
from xinfer.models.heads import head_counts, layer_types
from xinfer.models.rope import rope_from
from xinfer.spec import Attention, Cfg, Ffn, Layer, ModelSpec, Rope

NAMES = llama.NAMES | {
    "attn_post_norm": "model.layers.{i}.post_attention_layernorm.weight",
    "ffn_norm": "model.layers.{i}.pre_feedforward_layernorm.weight",
    "ffn_post_norm": "model.layers.{i}.post_feedforward_layernorm.weight",
}


def spec(cfg: Cfg) -> ModelSpec:
    """A GGUF configuration (`gguf` true) has its norms as 1+w already, and an unrounded embedding scale."""
    cfg.expect("hidden_activation", "gelu_pytorch_tanh")
    cfg.expect("attention_bias", False)
    cfg.expect("attn_logit_softcapping", None)
    cfg.expect("final_logit_softcapping", None)
    cfg.expect("use_bidirectional_attention", False)
    from_gguf = cfg.get("gguf", bool, False)
    heads, kv_heads, _ = head_counts(cfg)
    head_dim = cfg.size("head_dim", 256)
    scale = cfg.positive("query_pre_attn_scalar", 256.0) ** -0.5
    ropes, window, dim = _ropes(cfg, head_dim), cfg.size("sliding_window", 4096), cfg.size("hidden_size")
    ffn = Ffn(cfg.size("intermediate_size"), "gelu_tanh")
    kinds = {
        "full_attention": Attention(heads, kv_heads, head_dim, ropes[0], scale, 0, qk_norm=True),
        "sliding_attention": Attention(heads, kv_heads, head_dim, ropes[1], scale, window, qk_norm=True),
    }
    layers = tuple(Layer(kinds[kind], ffn, "sandwich") for kind in _kinds(cfg))
    return ModelSpec(
        arch="gemma3",
        vocab=cfg.size("vocab_size"),
        dim=dim,
        eps=cfg.positive("rms_norm_eps", 1e-6),
        layers=layers,
        tied=cfg.get("tie_word_embeddings", bool, True),
        embed_scale=math.sqrt(dim) if from_gguf else bf16(math.sqrt(dim)),
        max_len=cfg.size("max_position_embeddings", 131072),
        one_plus_norms=not from_gguf,
        stop_ids=cfg.ids("eos_token_id"),
        bos_id=cfg.get("bos_token_id", int, 2),
    )


def bf16(value: float) -> float:
    """The nearest bf16 value; the released weights multiply by the scale as bf16."""
    bits = int(np.float32(value).view(np.uint32))
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return float(np.uint32(bits).view(np.float32))


def _kinds(cfg: Cfg) -> list[str]:
    """Kind of each layer: every sixth sees everything."""
    every = cfg.size("sliding_window_pattern", cfg.size("_sliding_window_pattern", 6))
    count = cfg.size("num_hidden_layers")
    default = ["full_attention" if (i + 1) % every == 0 else "sliding_attention" for i in range(count)]
    return layer_types(cfg, default)


def _ropes(cfg: Cfg, head_dim: int) -> tuple[Rope, Rope]:
    """Rotations of full and of sliding layers. Scaling, where there is any, is of the full layers only."""
    nested = cfg.section("rope_parameters")
    if nested.values:
        full, sliding = nested.section("full_attention"), nested.section("sliding_attention")
    else:
        full, sliding = cfg.section("rope_scaling"), Cfg({}, cfg.where)
    full_theta = full.positive("rope_theta", cfg.positive("rope_theta", 1e6))
    local_theta = sliding.positive("rope_theta", cfg.positive("rope_local_base_freq", 1e4))
    return rope_from(cfg, full, head_dim, full_theta), rope_from(cfg, sliding, head_dim, local_theta)
