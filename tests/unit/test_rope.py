"""Rotary frequencies and tables against the published formulas, written out here in float64."""

import math

import numpy as np
import pytest

from xinfer.errors import CheckpointError, UnsupportedError
from xinfer.models.rope import cos_sin_table, make_rope, max_len
from xinfer.spec import Cfg, Rope

CLOSE = {"rtol": 3e-7}


def rope(head_dim: int = 64, **config: object) -> Rope:
    return make_rope(Cfg({"max_position_embeddings": 4096} | config, "config.json"), head_dim)


def plain(theta: float, dims: int) -> np.ndarray:
    return theta ** (-np.arange(0, dims, 2) / dims)


def test_default():
    made = rope(rope_theta=500000.0)
    assert (made.theta, made.dims, made.scale) == (500000.0, 64, 1.0)
    np.testing.assert_allclose(made.freqs, plain(500000.0, 64), **CLOSE)
    assert all(np.float32(freq) == freq for freq in made.freqs)
    assert made == rope(rope_parameters={"rope_type": "default", "rope_theta": 500000})
    assert rope().theta == 10000.0


def test_partial():
    made = rope(partial_rotary_factor=0.5)
    assert made.dims == 32
    np.testing.assert_allclose(made.freqs, plain(10000.0, 32), **CLOSE)
    with pytest.raises(CheckpointError, match="gives 3 rotary"):
        rope(8, partial_rotary_factor=0.4)


@pytest.mark.parametrize("word", ["rope_type", "type"])
def test_linear(word):
    made = rope(rope_scaling={word: "linear", "factor": 8.0})
    np.testing.assert_allclose(made.freqs, plain(10000.0, 64) / 8, **CLOSE)


def test_llama3():
    scaling = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    made = rope(128, rope_theta=500000.0, rope_scaling=scaling)
    wanted = []
    for freq in plain(500000.0, 128):
        wavelength = 2 * math.pi / freq
        if wavelength < 8192 / 4:
            wanted.append(freq)
        elif wavelength > 8192 / 1:
            wanted.append(freq / 8)
        else:
            smooth = (8192 / wavelength - 1) / (4 - 1)
            wanted.append((1 - smooth) * freq / 8 + smooth * freq)
    assert 0 < sum(0.126 * f < w < 0.999 * f for f, w in zip(plain(500000.0, 128), wanted))
    np.testing.assert_allclose(made.freqs, wanted, rtol=1e-6)
    with pytest.raises(CheckpointError, match="must be below"):
        rope(128, rope_scaling=scaling | {"low_freq_factor": 4.0})


def yarn(dims: int, theta: float, factor: float, original: int, *, truncate: bool = True) -> np.ndarray:
    def turn(rotations: float) -> float:
        return dims * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    low, high = (math.floor(turn(32)), math.ceil(turn(1))) if truncate else (turn(32), turn(1))
    low, high = max(low, 0), min(high, dims - 1)
    keep = 1 - np.clip((np.arange(dims // 2) - low) / (high - low), 0, 1)
    freqs = plain(theta, dims)
    return freqs / factor * (1 - keep) + freqs * keep


@pytest.mark.parametrize("truncate", [True, False])
def test_yarn(truncate):
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    made = rope(128, rope_theta=1e6, rope_scaling=scaling | {"truncate": truncate})
    np.testing.assert_allclose(made.freqs, yarn(128, 1e6, 4.0, 32768, truncate=truncate), rtol=1e-6)
    assert made.scale == np.float32(0.1 * math.log(4) + 1)


def test_yarn_attention_factors():
    scaling = {"rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 1024}

    def scale(**more: float) -> float:
        return rope(rope_scaling=scaling | more).scale

    full = 0.1 * math.log(16) + 1
    assert scale(mscale=1.0, mscale_all_dim=1.0) == 1.0
    assert scale(mscale=0.5, mscale_all_dim=1.0) == pytest.approx((0.05 * math.log(16) + 1) / full)
    assert scale(attention_factor=1.25) == 1.25
    assert scale(attn_factor=1 / full) == pytest.approx(1.0)
    derived = rope(rope_scaling={"rope_type": "yarn", "original_max_position_embeddings": 1024})
    given = rope(rope_scaling={"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024})
    assert derived == given


def test_yarn_stretches_the_context():
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}
    assert max_len(Cfg({"max_position_embeddings": 4096, "rope_scaling": scaling}, "c")) == 16384
    assert max_len(Cfg({"max_position_embeddings": 32768, "rope_scaling": scaling}, "c")) == 32768
    assert max_len(Cfg({"max_position_embeddings": 512}, "c")) == 512


def test_divisors_of_gguf():
    divisors = [1.0] * 16 + [8.0] * 16
    np.testing.assert_allclose(
        rope(rope_freq_divisors=divisors).freqs, plain(10000.0, 64) / divisors, **CLOSE
    )
    with pytest.raises(CheckpointError, match="3 rope frequency factors, wanted 32"):
        rope(rope_freq_divisors=[1.0] * 3)


def test_unknown_variant():
    with pytest.raises(UnsupportedError, match=r"'longrope'.*'yarn'"):
        rope(rope_scaling={"rope_type": "longrope"})


@pytest.mark.parametrize("length", [1, 10, 10000])
def test_table(length):
    made = Rope(10000.0, 8, (1.0, 0.10000000149011612, 0.01, 0.5), 1.5)
    table = cos_sin_table(made, length)
    assert table.shape == (length, 8) and table.dtype == np.float32
    positions = np.arange(length, dtype=np.float32)
    angles = (positions[:, None] * np.float32(made.freqs)).astype(np.float64)
    wanted = np.concatenate([np.cos(angles), np.sin(angles)], 1).astype(np.float32) * np.float32(1.5)
    assert np.array_equal(table, wanted)
