"""Llama: pre-norm, grouped-query attention, gated SiLU feed-forward. Qwen2 and Qwen3 are variations of it."""

from xinfer.models.heads import head_counts, windows
from xinfer.models.rope import make_rope, max_len
from xinfer.spec import Attention, Cfg, Ffn, Layer, ModelSpec

NAMES = {
    "embed": "model.embed_tokens.weight",
    "norm": "model.norm.weight",
    "head": "lm_head.weight",
    "attn_norm": "model.layers.{i}.input_layernorm.weight",
    "q": "model.layers.{i}.self_attn.q_proj.weight",
    "k": "model.layers.{i}.self_attn.k_proj.weight",
    "v": "model.layers.{i}.self_attn.v_proj.weight",
    "o": "model.layers.{i}.self_attn.o_proj.weight",
    "q_bias": "model.layers.{i}.self_attn.q_proj.bias",
    "k_bias": "model.layers.{i}.self_attn.k_proj.bias",
    "v_bias": "model.layers.{i}.self_attn.v_proj.bias",
    "o_bias": "model.layers.{i}.self_attn.o_proj.bias",
    "q_norm": "model.layers.{i}.self_attn.q_norm.weight",
    "k_norm": "model.layers.{i}.self_attn.k_norm.weight",
    "ffn_norm": "model.layers.{i}.post_attention_layernorm.weight",
    "gate": "model.layers.{i}.mlp.gate_proj.weight",
    "up": "model.layers.{i}.mlp.up_proj.weight",
    "down": "model.layers.{i}.mlp.down_proj.weight",
}


def spec(cfg: Cfg) -> ModelSpec:
    cfg.expect("mlp_bias", False)
    bias = cfg.get("attention_bias", bool, False)
    return dense_spec(cfg, bias=bias, out_bias=cfg.get("attention_out_bias", bool, bias))


def dense_spec(cfg: Cfg, *, bias: bool, out_bias: bool = False, qk_norm: bool = False) -> ModelSpec:
    """The ModelSpec of a plain pre-norm decoder."""
    cfg.expect("hidden_act", "silu")
    heads, kv_heads, head_dim = head_counts(cfg)
    rope = make_rope(cfg, head_dim)
    ffn = Ffn(cfg.size("intermediate_size"))
    layers = tuple(
        Layer(
            Attention(heads, kv_heads, head_dim, rope, head_dim**-0.5, window, qk_norm, bias, out_bias), ffn
        )
        for window in windows(cfg)
    )
    return ModelSpec(
        arch=cfg.need("model_type", str),
        vocab=cfg.size("vocab_size"),
        dim=cfg.size("hidden_size"),
        eps=cfg.positive("rms_norm_eps", 1e-6),
        layers=layers,
        tied=cfg.get("tie_word_embeddings", bool, False),
        max_len=max_len(cfg),
        stop_ids=cfg.ids("eos_token_id"),
        bos_id=cfg.get("bos_token_id", int, None),
    )
