"""EngineConfig: defaults, limits, and errors of one line that name the option and the remedy."""

import dataclasses

import pytest

from xinfer.config import EngineConfig
from xinfer.errors import ConfigError


def test_defaults() -> None:
    config = EngineConfig.of(m="model.gguf")
    assert (config.device, config.dtype, config.load_format) == ("auto", "auto", "auto")
    assert (config.max_num_seqs, config.kv_memory_fraction, config.seed, config.graphs) == (8, 0.9, 0, True)
    assert (config.chunk("cuda"), config.chunk("cpu")) == (4096, 512)
    assert EngineConfig.of(m="x", prefill_chunk=128).chunk("cuda") == 128


def test_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        EngineConfig(m="x").seed = 1


@pytest.mark.parametrize(
    "options, message",
    [
        ({"m": ""}, "m must name a model"),
        ({"m": 3}, "m must name a model"),
        ({"device": "gpu"}, "device must be one of auto, cuda, cpu, not 'gpu'"),
        ({"device": "cdua"}, "did you mean 'cuda'"),
        ({"dtype": "f16"}, "dtype must be one of auto, bf16, f32"),
        ({"dtype": None}, "dtype must be one of"),
        ({"device": "cpu", "dtype": "bf16"}, "dtype bf16 needs a GPU"),
        ({"load_format": "none"}, "load_format must be one of auto, dummy"),
        ({"kvcache_dtype": "fp8"}, "kvcache_dtype must be one of auto"),
        ({"max_model_len": 1}, "max_model_len must be at least 2, not 1"),
        ({"max_model_len": "4k"}, "max_model_len must be a whole number, not '4k'"),
        ({"max_num_seqs": 0}, "max_num_seqs must be at least 1"),
        ({"max_num_seqs": True}, "max_num_seqs must be a whole number"),
        ({"max_num_seqs": None}, "max_num_seqs must be a whole number"),
        ({"prefill_chunk": 16}, "prefill_chunk must be at least 32"),
        ({"prefill_chunk": 100}, "multiple of 32, not 100: use 96 or 128"),
        ({"kv_tokens": 1}, "kv_tokens must be at least 64"),
        ({"kv_memory_fraction": 0}, "kv_memory_fraction must be above 0 and at most 1"),
        ({"kv_memory_fraction": 1.5}, "kv_memory_fraction must be above 0 and at most 1"),
        ({"kv_memory_fraction": float("nan")}, "kv_memory_fraction"),
        ({"kv_memory_fraction": "90%"}, "kv_memory_fraction"),
        ({"seed": -1}, "seed must be at least 0"),
        ({"graphs": 1}, "graphs must be True or False"),
        ({"served_model_name": 1}, "served_model_name must be text"),
        ({"max_modle_len": 10}, "unknown option 'max_modle_len'; did you mean 'max_model_len'?"),
        ({"zzz": 10}, "unknown option 'zzz'"),
    ],
)
def test_refused(options: dict, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        EngineConfig.of(**{"m": "x"} | options)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_model_is_required() -> None:
    with pytest.raises(ConfigError, match="no model given"):
        EngineConfig.of(device="cpu")
