"""GGUF in the words of the rest: metadata as a configuration, names as canonical names.

What a converter changed is told here and undone in load/: Llama's rows of q and k come permuted so that
rotary pairs are neighbours, Gemma's norms come as 1+w, Llama 3's rope factors come as a tensor.
"""

from collections.abc import Mapping

import numpy as np

from xinfer.errors import CheckpointError, UnsupportedError
from xinfer.spec import Cfg

from .raw import Raw

MODEL_TYPES = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "gemma3": "gemma3_text"}
PERMUTED = frozenset({"llama"})  # architectures whose q and k rows are in pair order
GGUF_NAMES = {
    "embed": "token_embd.weight",
    "norm": "output_norm.weight",
    "head": "output.weight",
    "attn_norm": "blk.{i}.attn_norm.weight",
    "q": "blk.{i}.attn_q.weight",
    "k": "blk.{i}.attn_k.weight",
    "v": "blk.{i}.attn_v.weight",
    "o": "blk.{i}.attn_output.weight",
    "q_bias": "blk.{i}.attn_q.bias",
    "k_bias": "blk.{i}.attn_k.bias",
    "v_bias": "blk.{i}.attn_v.bias",
    "o_bias": "blk.{i}.attn_output.bias",
    "q_norm": "blk.{i}.attn_q_norm.weight",
    "k_norm": "blk.{i}.attn_k_norm.weight",
    "attn_post_norm": "blk.{i}.post_attention_norm.weight",
    "ffn_norm": "blk.{i}.ffn_norm.weight",
    "gate": "blk.{i}.ffn_gate.weight",
    "up": "blk.{i}.ffn_up.weight",
    "down": "blk.{i}.ffn_down.weight",
    "ffn_post_norm": "blk.{i}.post_ffw_norm.weight",
}
ROPE_FREQS = "rope_freqs.weight"
IGNORED = (ROPE_FREQS, "blk.*.attn_rot_embd.weight")  # fnmatch; the first is part of the configuration
# Key without the architecture, its type -> key of a configuration.
_KEYS = {
    "embedding_length": ("hidden_size", int),
    "block_count": ("num_hidden_layers", int),
    "context_length": ("max_position_embeddings", int),
    "attention.layer_norm_rms_epsilon": ("rms_norm_eps", float),
    "rope.freq_base": ("rope_theta", float),
    "rope.freq_base_swa": ("rope_local_base_freq", float),
    "attention.sliding_window": ("sliding_window", int),
    "final_logit_softcapping": ("final_logit_softcapping", float),
    "attn_logit_softcapping": ("attn_logit_softcapping", float),
}
_SCALING_KEYS = {
    "factor": "factor",
    "original_context_length": "original_max_position_embeddings",
    "attn_factor": "attn_factor",
    "yarn_beta_fast": "beta_fast",
    "yarn_beta_slow": "beta_slow",
}


def hf_config(metadata: Mapping[str, object], tensors: Mapping[str, Raw], where: str) -> dict[str, object]:
    """A configuration as a Hugging Face model would have it, with "gguf": True. `where` is for the errors."""
    meta = Cfg(metadata, where)
    arch = meta.need("general.architecture", str)
    if arch not in MODEL_TYPES:
        raise UnsupportedError(
            f"{where}: architecture {arch!r} is not supported; known: {', '.join(MODEL_TYPES)}"
        )
    own = Cfg({k.removeprefix(arch + "."): v for k, v in metadata.items()}, f"{where}: {arch}")
    own.expect("expert_count", 0)
    if GGUF_NAMES["embed"] not in tensors:
        raise CheckpointError(f"{where} has no {GGUF_NAMES['embed']}: it is not a complete model")
    config = {key: own.get(name, kind, None) for name, (key, kind) in _KEYS.items()}
    config |= {
        "model_type": MODEL_TYPES[arch],
        "gguf": True,
        "vocab_size": tensors[GGUF_NAMES["embed"]].shape[0],
        "intermediate_size": _uniform(own, "feed_forward_length"),
        "tie_word_embeddings": GGUF_NAMES["head"] not in tensors,
        "attention_bias": GGUF_NAMES["q_bias"].format(i=0) in tensors,
        "attention_out_bias": GGUF_NAMES["o_bias"].format(i=0) in tensors,
        "rope_scaling": _scaling(own),
        "rope_freq_divisors": _divisors(tensors, where),
        "eos_token_id": [
            meta.need(f"tokenizer.ggml.{end}_token_id", int)
            for end in ("eos", "eot", "eom")
            if f"tokenizer.ggml.{end}_token_id" in metadata
        ],
        "bos_token_id": meta.get("tokenizer.ggml.bos_token_id", int, None),
    }
    config |= _heads(own, config, arch)
    return config | (_gemma3(own, config) if arch == "gemma3" else {})


def _heads(own: Cfg, config: dict, arch: str) -> dict[str, object]:
    heads = _uniform(own, "attention.head_count")
    kv_heads = _uniform(own, "attention.head_count_kv", heads)
    head_dim = own.size("attention.key_length", max(1, own.size("embedding_length") // max(1, heads)))
    own.expect("attention.value_length", head_dim)
    rotary = own.size("rope.dimension_count", head_dim)
    if arch in PERMUTED:
        own.expect("rope.dimension_count", head_dim)
    return {
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "partial_rotary_factor": rotary / head_dim,
    }


def _uniform(own: Cfg, key: str, default: int | None = None) -> int:
    """A number, or a list with the same number for every layer."""
    value = own.values.get(key)
    if isinstance(value, list) and value:
        if len(set(map(repr, value))) > 1:
            raise UnsupportedError(f"{own.where}: {key} differs between layers, which is not supported")
        own = Cfg({key: value[0]}, own.where)
    return own.size(key, default)


def _scaling(own: Cfg) -> dict[str, object] | None:
    kind = own.get("rope.scaling.type", str, "none")
    if kind == "none":
        factor = own.get("rope.scale_linear", float, 1.0)
        return {"rope_type": "linear", "factor": factor} if factor != 1.0 else None
    found = {key: own.values.get(f"rope.scaling.{name}") for name, key in _SCALING_KEYS.items()}
    return {"rope_type": kind, **{key: value for key, value in found.items() if value is not None}}


def _divisors(tensors: Mapping[str, Raw], where: str) -> list[float]:
    raw = tensors.get(ROPE_FREQS)
    if raw is None:
        return []
    values = raw.data.view("<f4") if raw.dtype == "F32" else np.zeros(0, np.float32)
    if len(raw.shape) != 1 or not len(values) or not (np.isfinite(values) & (values > 0)).all():
        raise CheckpointError(
            f"{where}: {ROPE_FREQS} is {raw.dtype} {raw.shape}, wanted positive F32: convert it again"
        )
    return values.tolist()


def _gemma3(own: Cfg, config: dict) -> dict[str, object]:
    """What is fixed in llama.cpp: the largest model (62 layers) scales queries by D/H, the others by E."""
    pattern = own.values.get("attention.sliding_window_pattern")
    if isinstance(pattern, list):
        kinds = ["sliding_attention" if local else "full_attention" for local in pattern]
        layers = {"layer_types": kinds}
    else:
        layers = {"sliding_window_pattern": pattern}
    large = config["num_hidden_layers"] == 62
    scalar = config["hidden_size"] / config["num_attention_heads"] if large else config["head_dim"]
    return {"query_pre_attn_scalar": scalar, **layers}


def pair_to_half(rows: int, head_dim: int) -> np.ndarray:
    """i64 [rows]: for each row of q or k in half order, its row in pair order. In a head of E rows, pair
    order has the rotary pair i at rows 2i and 2i+1, half order at i and i+E/2."""
    index = np.arange(rows).reshape(-1, head_dim // 2, 2)
    return index.swapaxes(1, 2).reshape(-1)
