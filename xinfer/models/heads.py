"""Reads of a configuration that many architectures share: heads, and which layers have a sliding window."""

from xinfer.errors import CheckpointError
from xinfer.spec import Cfg


def head_counts(cfg: Cfg) -> tuple[int, int, int]:
    """(query heads, kv heads, head dim)."""
    heads = cfg.size("num_attention_heads")
    kv_heads = cfg.size("num_key_value_heads", heads)
    if heads % kv_heads:
        raise CheckpointError(f"{cfg.where}: {heads} attention heads cannot share {kv_heads} key-value heads")
    return heads, kv_heads, cfg.size("head_dim", cfg.size("hidden_size") // heads)


def windows(cfg: Cfg) -> list[int]:
    """Sliding window of each layer, 0 for none: `layer_types`, or the layers from `max_window_layers` on."""
    count = cfg.size("num_hidden_layers")
    if not cfg.get("use_sliding_window", bool, False) or cfg.values.get("sliding_window") is None:
        return [0] * count
    width, first = cfg.size("sliding_window"), cfg.get("max_window_layers", int, count)
    default = ["sliding_attention" if i >= first else "full_attention" for i in range(count)]
    return [width if kind == "sliding_attention" else 0 for kind in layer_types(cfg, default)]


def layer_types(cfg: Cfg, default: list[str]) -> list[str]:
    """`layer_types` of the configuration, checked: as many as `default`, of the two kinds that exist."""
    kinds = cfg.get("layer_types", list, default)
    if len(kinds) != len(default):
        raise CheckpointError(f"{cfg.where}: {len(kinds)} layer_types for {len(default)} layers")
    for kind in kinds:
        Cfg({"layer_types": kind}, cfg.where).expect("layer_types", "full_attention", "sliding_attention")
    return kinds
