"""Rotary frequencies of every variant, and their tables of cosines and sines.

f32 arithmetic in the order of the published implementation (transformers, modeling_rope_utils), so that the
angles are the same numbers. A GGUF file brings llama3's factors as divisors of the default frequencies.
"""

import math
from collections.abc import Sequence

import numpy as np

from xinfer.errors import CheckpointError
from xinfer.spec import Cfg, Rope

VARIANTS = ("default", "linear", "llama3", "yarn")
_ROWS = 8192  # positions of a table computed at a time


def make_rope(cfg: Cfg, head_dim: int, theta: float = 10000.0) -> Rope:
    """From a configuration of either spelling: `rope_parameters`, or `rope_theta` with `rope_scaling`."""
    parameters = cfg.section("rope_parameters")
    if not parameters.values:
        parameters = cfg.section("rope_scaling")
    theta = parameters.positive("rope_theta", cfg.positive("rope_theta", theta))
    return rope_from(cfg, parameters, head_dim, theta)


def rope_from(cfg: Cfg, parameters: Cfg, head_dim: int, theta: float) -> Rope:
    """`parameters`: the object that says which variant; `cfg`: the configuration around it."""
    kind = parameters.get("rope_type", str, parameters.get("type", str, "default"))
    Cfg({"rope_type": kind}, parameters.where).expect("rope_type", *VARIANTS)
    fraction = parameters.positive("partial_rotary_factor", cfg.positive("partial_rotary_factor", 1.0))
    dims = int(head_dim * fraction)
    if dims % 2 or not 0 < dims <= head_dim:
        raise CheckpointError(
            f"{cfg.where}: partial_rotary_factor {fraction} of {head_dim} head dims gives {dims} rotary, "
            f"wanted an even number up to {head_dim}"
        )
    freqs, scale = default_freqs(theta, dims), 1.0
    if kind == "linear":
        freqs = freqs / np.float32(parameters.positive("factor"))
    elif kind == "llama3":
        freqs = _llama3(freqs, parameters)
    elif kind == "yarn":
        freqs, scale = _yarn(cfg, parameters, dims, theta)
    freqs = _divided(freqs, cfg.get("rope_freq_divisors", list, []), cfg.where)
    return Rope(theta, dims, tuple(freqs.tolist()), scale)


def _powers(theta: float, dims: int) -> np.ndarray:
    """f32 [R/2]: theta^(2i/R), the exponent and the result rounded to f32."""
    exponents = np.arange(0, dims, 2, dtype=np.float32) / np.float32(dims)
    return np.power(float(theta), exponents.astype(np.float64)).astype(np.float32)


def default_freqs(theta: float, dims: int) -> np.ndarray:
    """f32 [R/2]: theta^(-2i/R)."""
    return np.float32(1) / _powers(theta, dims)


def _divided(freqs: np.ndarray, divisors: Sequence[float], where: str) -> np.ndarray:
    """freqs / divisors, where there are any (`rope_freqs.weight` of a GGUF file)."""
    if not divisors:
        return freqs
    if len(divisors) != len(freqs):
        raise CheckpointError(
            f"{where}: {len(divisors)} rope frequency factors, wanted {len(freqs)}: convert the model again"
        )
    return freqs / np.asarray(divisors, np.float32)


def _llama3(freqs: np.ndarray, parameters: Cfg) -> np.ndarray:
    """Long wavelengths divided by the factor, short ones kept, a blend between. f32 [R/2]."""
    factor, low = parameters.positive("factor"), parameters.positive("low_freq_factor")
    high = parameters.positive("high_freq_factor")
    original = parameters.size("original_max_position_embeddings")
    if not low < high:
        raise CheckpointError(
            f"{parameters.where}: low_freq_factor {low} must be below high_freq_factor {high}"
        )
    wavelength = np.float32(2 * math.pi) / freqs
    blend = (np.float32(original) / wavelength - np.float32(low)) / np.float32(high - low)
    slow = freqs / np.float32(factor)
    between = (np.float32(1) - blend) * slow + blend * freqs
    chosen = np.where(wavelength > np.float32(original / low), slow, between)
    return np.where(wavelength < np.float32(original / high), freqs, chosen).astype(np.float32)


def _yarn(cfg: Cfg, parameters: Cfg, dims: int, theta: float) -> tuple[np.ndarray, float]:
    """(f32 [R/2], factor of cos and sin). Fast dims keep their frequency, slow ones are divided."""
    factor, original = yarn_stretch(cfg, parameters)
    ends = [
        dims * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta))
        for turns in (parameters.positive("beta_fast", 32.0), parameters.positive("beta_slow", 1.0))
    ]
    if parameters.get("truncate", bool, True):
        ends = [math.floor(ends[0]), math.ceil(ends[1])]
    low, high = max(ends[0], 0), min(ends[1], dims - 1)
    high = high + 0.001 if low == high else high
    ramp = (np.arange(dims // 2, dtype=np.float32) - np.float32(low)) / np.float32(high - low)
    keep = np.float32(1) - np.clip(ramp, 0, 1)
    powers = _powers(theta, dims)
    slow, fast = np.float32(1) / (np.float32(factor) * powers), np.float32(1) / powers
    return slow * (np.float32(1) - keep) + fast * keep, _yarn_scale(parameters, factor)


def yarn_stretch(cfg: Cfg, parameters: Cfg) -> tuple[float, int]:
    """(factor, original context length) of a YaRN configuration."""
    longest = cfg.size("max_position_embeddings")
    original = parameters.size(
        "original_max_position_embeddings", cfg.size("original_max_position_embeddings", longest)
    )
    return parameters.positive("factor", longest / original), original


def max_len(cfg: Cfg) -> int:
    """Positions the model was made for, with YaRN's stretch even where the configuration names fewer."""
    longest = cfg.size("max_position_embeddings", 2048)
    for key in ("rope_parameters", "rope_scaling"):
        parameters = cfg.section(key)
        if "yarn" in (parameters.values.get("rope_type"), parameters.values.get("type")):
            factor, original = yarn_stretch(cfg, parameters)
            longest = max(longest, int(factor * original))
    return longest


def _yarn_scale(parameters: Cfg, factor: float) -> float:
    """What cos and sin are multiplied by, an f32 value. `attn_factor` multiplies what the formula gives:
    models that ship it were made for that, though transformers ignores it."""

    def grown(by: float) -> float:
        return 0.1 * by * math.log(factor) + 1.0 if factor > 1 else 1.0

    over, under = parameters.get("mscale", float, 0.0), parameters.get("mscale_all_dim", float, 0.0)
    scale = grown(over) / grown(under) if over and under else grown(1.0)
    scale = parameters.positive("attention_factor", scale)
    return float(np.float32(scale * parameters.positive("attn_factor", 1.0)))


def cos_sin_table(rope: Rope, max_len: int) -> np.ndarray:
    """f32 [max_len, R]: cos(pos*freq) in the first half, sin in the second, times the rope's scale. The angle
    is an f32 product; cos and sin are correctly rounded."""
    half = rope.dims // 2
    table = np.empty((max_len, rope.dims), np.float32)
    freqs, scale = np.asarray(rope.freqs, np.float32), np.float32(rope.scale)
    for start in range(0, max_len, _ROWS):
        rows = table[start : start + _ROWS]
        positions = np.arange(start, start + len(rows), dtype=np.float32)
        angles = (positions[:, None] * freqs).astype(np.float64)
        rows[:, :half], rows[:, half:] = np.cos(angles), np.sin(angles)
        rows *= scale
    return table
