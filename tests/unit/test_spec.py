"""Configurations -> ModelSpec, for every architecture and both spellings of their keys."""

import math

import pytest
from tiny_files import CONFIG

from xinfer.errors import CheckpointError, UnsupportedError
from xinfer.models import ARCHITECTURES, architecture
from xinfer.models.gemma3 import bf16
from xinfer.spec import Cfg, Ffn, ModelSpec, tensor_shapes

GEMMA = CONFIG | {
    "model_type": "gemma3_text",
    "architectures": ["Gemma3ForCausalLM"],
    "num_hidden_layers": 8,
    "sliding_window": 512,
    "query_pre_attn_scalar": 256,
    "rope_theta": 1e6,
    "rope_local_base_freq": 10000.0,
    "hidden_size": 640,
    "tie_word_embeddings": True,
}


def spec(config: dict = CONFIG, **more: object) -> ModelSpec:
    cfg = Cfg(config | more, "config.json")
    return architecture(cfg).spec(cfg)


def test_llama():
    made = spec()
    layer = made.layers[0]
    assert (made.arch, made.vocab, made.dim, made.eps) == ("llama", 72, 64, 1e-5)
    assert (made.tied, made.max_len, made.stop_ids, made.bos_id) == (False, 128, (2,), 1)
    assert (made.embed_scale, made.one_plus_norms, len(made.layers)) == (1.0, False, 2)
    attention = layer.attention
    assert (attention.heads, attention.kv_heads, attention.head_dim) == (4, 2, 16)
    assert attention.scale == 0.25 and attention.window == 0
    assert not attention.qk_norm and not attention.bias and not attention.out_bias
    assert layer.ffn == Ffn(96, "silu") and layer.ffn.padded == 128 and layer.wiring == "pre"
    assert hash(made.layers[0].attention.rope) == hash(made.layers[1].attention.rope)


def test_llama_defaults_and_biases():
    made = spec(num_key_value_heads=None, head_dim=None, attention_bias=True, eos_token_id=[2, 5])
    attention = made.layers[0].attention
    assert (attention.kv_heads, attention.head_dim) == (4, 16)
    assert attention.bias and attention.out_bias and made.stop_ids == (2, 5)
    assert spec(bos_token_id=None).bos_id is None


def test_qwen2_and_qwen3():
    qwen2 = spec(model_type="qwen2", architectures=["Qwen2ForCausalLM"]).layers[0].attention
    assert qwen2.bias and not qwen2.out_bias and not qwen2.qk_norm
    qwen3 = spec(model_type="qwen3", architectures=["Qwen3ForCausalLM"]).layers[0].attention
    assert qwen3.qk_norm and not qwen3.bias


def test_qwen_windows():
    qwen = CONFIG | {"model_type": "qwen2", "sliding_window": 32, "num_hidden_layers": 4}

    def windows(**more: object) -> list[int]:
        return [layer.attention.window for layer in spec(qwen, **more).layers]

    assert windows() == [0, 0, 0, 0]
    assert windows(use_sliding_window=True, max_window_layers=3) == [0, 0, 0, 32]
    types = ["sliding_attention", "full_attention"] * 2
    assert windows(use_sliding_window=True, layer_types=types) == [32, 0, 32, 0]
    with pytest.raises(CheckpointError, match="1 layer_types for 4 layers"):
        windows(use_sliding_window=True, layer_types=["full_attention"])
    with pytest.raises(UnsupportedError, match="chunked_attention"):
        windows(use_sliding_window=True, layer_types=["chunked_attention"] * 4)


def test_gemma3():
    made = spec(GEMMA)
    assert [layer.attention.window for layer in made.layers] == [512] * 5 + [0] + [512] * 2
    thetas = [layer.attention.rope.theta for layer in made.layers]
    assert thetas == [1e4] * 5 + [1e6] + [1e4] * 2
    layer = made.layers[0]
    assert layer.attention.scale == 1 / 16 and layer.attention.qk_norm and layer.wiring == "sandwich"
    assert layer.ffn.act == "gelu_tanh" and made.tied and made.one_plus_norms
    assert made.embed_scale == 25.25  # sqrt(640) = 25.298
    gguf = spec(GEMMA, gguf=True)
    assert gguf.embed_scale == math.sqrt(640) and not gguf.one_plus_norms


def test_gemma3_spellings_of_rope():
    scaled = spec(GEMMA, rope_scaling={"rope_type": "linear", "factor": 8.0})
    nested = {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    }
    bare = {key: value for key, value in GEMMA.items() if not key.startswith("rope")}
    assert spec(bare, rope_parameters=nested) == scaled
    plain = spec(bare)
    assert plain == spec(GEMMA)
    full, local = (scaled.layers[i].attention.rope for i in (5, 0))
    assert full.freqs[0] == 0.125 and local.freqs[0] == 1.0
    types = ["full_attention"] * 8
    assert {layer.attention.window for layer in spec(GEMMA, layer_types=types).layers} == {0}
    pairs = [layer.attention.window for layer in spec(GEMMA, sliding_window_pattern=2).layers]
    assert pairs == [512, 0] * 4


@pytest.mark.parametrize(
    "value, rounded", [(25.298221588134766, 25.25), (53.06599664568, 53.0), (73.3212111, 73.5), (8.0, 8.0)]
)
def test_bf16(value, rounded):
    assert bf16(value) == rounded


@pytest.mark.parametrize(
    "change, error, message",
    [
        ({"hidden_size": None}, CheckpointError, r"config.json has no 'hidden_size' \(int\)"),
        ({"hidden_size": "64"}, CheckpointError, r"'hidden_size' is '64' \(str\), wanted int"),
        ({"hidden_size": 0}, CheckpointError, "'hidden_size' is 0, wanted at least 1"),
        ({"hidden_size": True}, CheckpointError, r"'hidden_size' is True \(bool\), wanted int"),
        ({"rms_norm_eps": -1}, CheckpointError, "'rms_norm_eps' is -1.0, wanted above 0"),
        ({"num_key_value_heads": 3}, CheckpointError, "4 attention heads cannot share 3"),
        ({"eos_token_id": "x"}, CheckpointError, "wanted token ids"),
        ({"hidden_act": "relu"}, UnsupportedError, "'hidden_act' is 'relu', this version runs only 'silu'"),
        ({"mlp_bias": True}, UnsupportedError, "'mlp_bias' is True"),
        ({"model_type": "bert"}, UnsupportedError, "'bert' is not supported; known: llama, qwen2"),
        ({"architectures": ["LlamaForTokenClassification"]}, UnsupportedError, "not a text generator"),
        ({"rope_scaling": [1]}, CheckpointError, "wanted dict"),
    ],
)
def test_refusals(change, error, message):
    with pytest.raises(error, match=message):
        spec(CONFIG | change)


def test_tensor_shapes():
    shapes = tensor_shapes(spec())
    assert shapes["head"] == shapes["embed"] == (72, 64)
    assert shapes["layers.1.k"] == (32, 64) and shapes["layers.1.o"] == (64, 64)
    assert shapes["layers.0.down"] == (64, 96) and "layers.0.q_bias" not in shapes
    assert len(shapes) == 3 + 2 * 9
    gemma = tensor_shapes(spec(GEMMA))
    assert "head" not in gemma and gemma["layers.7.q_norm"] == (16,)
    assert gemma["layers.0.attn_post_norm"] == gemma["layers.0.ffn_post_norm"] == (640,)
    qwen = tensor_shapes(spec(model_type="qwen2"))
    assert qwen["layers.0.q_bias"] == (64,) and qwen["layers.0.v_bias"] == (32,)


def test_every_architecture_names_every_tensor():
    for name, kind in ARCHITECTURES.items():
        config = GEMMA if name == "gemma3_text" else CONFIG | {"model_type": name}
        for canonical in tensor_shapes(kind.spec(Cfg(config, "config.json"))):
            assert canonical.split(".")[-1] in kind.names
