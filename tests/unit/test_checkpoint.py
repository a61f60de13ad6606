"""Opening checkpoints: folders and GGUF files, what they bring, and what is refused."""

import json
from pathlib import Path

import numpy as np
import pytest
from tiny_files import CONFIG, HEADS, llama_tensors, permuted, write_folder, write_gguf

from xinfer.errors import CheckpointError, UnsupportedError
from xinfer.load.checkpoint import open_checkpoint
from xinfer.load.names import pair_to_half

OWN_GOLDENS = Path(__file__).resolve().parent.parent / "goldens" / "tiny"


def test_folder(tmp_path):
    tensors = llama_tensors()
    folder = write_folder(tmp_path / "m", tensors=tensors)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 2]}))
    made = open_checkpoint(folder)
    assert made.folder == folder and made.gguf_metadata is None and not made.pair_rows
    assert not made.stored_f32 and made.spec.stop_ids == (2, 7)
    raw = made.tensors["layers.1.gate"]
    assert (raw.name, raw.dtype, raw.shape) == ("model.layers.1.mlp.gate_proj.weight", "BF16", (96, 64))
    assert raw.data.tobytes() == tensors[raw.name].tobytes()


def test_folder_without_weights(tmp_path):
    made = open_checkpoint(write_folder(tmp_path / "m", tensors={}), weights=False)
    assert made.tensors == {} and made.spec.vocab == 72
    with pytest.raises(CheckpointError, match=r"no \*\.safetensors"):
        open_checkpoint(tmp_path / "m")


def test_stored_f32(tmp_path):
    assert open_checkpoint(write_folder(tmp_path / "m", tensors=llama_tensors(dtype=np.float32))).stored_f32
    assert open_checkpoint(write_gguf(tmp_path / "m.gguf", llama_tensors())).stored_f32


def test_missing_left_over_and_wrong_shapes(tmp_path):
    good = llama_tensors()
    q, extra = "model.layers.0.self_attn.q_proj.weight", "model.layers.0.extra.weight"
    with pytest.raises(CheckpointError, match=f"lacks 1 tensor: {q}"):
        open_checkpoint(write_folder(tmp_path / "a", tensors={k: v for k, v in good.items() if k != q}))
    with pytest.raises(UnsupportedError, match=f"has 1 tensor: {extra}; llama has no use"):
        open_checkpoint(write_folder(tmp_path / "b", tensors=good | {extra: good[q]}))
    with pytest.raises(CheckpointError, match=rf"1 tensor: {q} \[16, 64\] \(wanted \[64, 64\]\)"):
        open_checkpoint(write_folder(tmp_path / "c", tensors=good | {q: good[q][:16]}))
    with pytest.raises(CheckpointError, match=r"lacks 9 tensors: .*, \.\.\."):
        open_checkpoint(write_folder(tmp_path / "d", CONFIG | {"num_hidden_layers": 3}, good))


def test_ignored_tensors(tmp_path):
    tied = CONFIG | {"tie_word_embeddings": True}
    tensors = llama_tensors() | {"model.layers.0.self_attn.rotary_emb.inv_freq": np.zeros(8, np.float32)}
    assert "head" not in open_checkpoint(write_folder(tmp_path / "m", tied, tensors)).tensors


def test_refused_folders(tmp_path):
    with pytest.raises(CheckpointError, match="no file or folder"):
        open_checkpoint(tmp_path / "none")
    with pytest.raises(CheckpointError, match=r"has no config\.json"):
        open_checkpoint(tmp_path)
    with pytest.raises(UnsupportedError, match="quantised by 'awq'"):
        open_checkpoint(
            write_folder(tmp_path / "m", CONFIG | {"quantization_config": {"quant_method": "awq"}})
        )
    for text in ("{", "[]", "\xff"):
        (tmp_path / "config.json").write_text(text, encoding="latin-1")
        with pytest.raises(CheckpointError, match=r"config\.json"):
            open_checkpoint(tmp_path)


def test_gguf(tmp_path):
    tensors = llama_tensors()
    factors = np.array([1, 1, 1, 1, 2, 4, 8, 8], np.float32)
    path = write_gguf(
        tmp_path / "m.gguf", tensors, {"proj": "Q8_0"}, {"rope_freqs.weight": factors}, llama__vocab_size=72
    )
    made, plain = open_checkpoint(path), open_checkpoint(write_folder(tmp_path / "m", tensors=tensors))
    assert made.pair_rows and made.folder is None and not made.stored_f32
    assert made.gguf_metadata["tokenizer.ggml.model"] == "gpt2"
    assert made.tensors.keys() == plain.tensors.keys()
    assert made.tensors["layers.0.q"].dtype == "Q8_0"
    assert made.spec.stop_ids == (2,) and made.spec.eps == pytest.approx(1e-5)
    ours, theirs = (m.spec.layers[0].attention for m in (made, plain))
    assert (ours.heads, ours.kv_heads, ours.head_dim) == (theirs.heads, theirs.kv_heads, theirs.head_dim)
    np.testing.assert_array_equal(np.float32(ours.rope.freqs), np.float32(theirs.rope.freqs) / factors)


def test_gguf_scaling_and_ties(tmp_path):
    tensors = {k: v for k, v in llama_tensors().items() if k != "lm_head.weight"}
    keys = {"qwen2__rope__scaling__type": "yarn", "qwen2__rope__scaling__factor": 4.0}
    keys["qwen2__rope__scaling__original_context_length"] = 32
    biases = {
        f"blk.{i}.attn_{name}.bias": np.ones(n, np.float32)
        for i in range(2)
        for name, n in (("q", 64), ("k", 32), ("v", 32))
    }
    made = open_checkpoint(write_gguf(tmp_path / "m.gguf", tensors, extra=biases, arch="qwen2", **keys))
    assert made.spec.tied and not made.pair_rows and made.spec.max_len == 128
    assert made.spec.layers[0].attention.bias
    assert made.spec.layers[0].attention.rope.scale == pytest.approx(1.1386294)


def test_refused_gguf(tmp_path):
    tensors = llama_tensors()
    with pytest.raises(UnsupportedError, match="architecture 'bert' is not supported; known: llama"):
        open_checkpoint(write_gguf(tmp_path / "a.gguf", tensors, arch="bert"))
    with pytest.raises(UnsupportedError, match="'expert_count' is 8"):
        open_checkpoint(write_gguf(tmp_path / "b.gguf", tensors, llama__expert_count=8))
    with pytest.raises(CheckpointError, match=r"no token_embd\.weight"):
        open_checkpoint(write_gguf(tmp_path / "c.gguf", {}))
    with pytest.raises(UnsupportedError, match=r"1 tensor: blk\.0\.attn_sinks\.weight"):
        extra = {"blk.0.attn_sinks.weight": np.zeros(4, np.float32)}
        open_checkpoint(write_gguf(tmp_path / "d.gguf", tensors, extra=extra))


def test_pair_to_half_undoes_the_converter():
    rows = np.arange(64)
    assert np.array_equal(permuted(rows, HEADS)[pair_to_half(64, 16)], rows)


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3"])
def test_goldens_of_others(shared, name):
    made = open_checkpoint(shared / "goldens" / "tiny" / name)
    assert made.spec.arch == name and len(made.spec.layers) == 4


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3", "gemma3"])
def test_own_goldens(name):
    made = open_checkpoint(OWN_GOLDENS / name)
    assert made.spec.arch == name
    if name == "gemma3":
        assert [layer.attention.window for layer in made.spec.layers] == [8] * 5 + [0, 8]
        assert made.spec.embed_scale == 8.0


def test_real_files(models):
    smol = open_checkpoint(models / "SmolLM2-135M-Instruct.Q4_1.gguf")
    assert (smol.spec.dim, len(smol.spec.layers), smol.spec.tied) == (576, 30, True)
    gemma = open_checkpoint(models / "gemma-3-270m-q4_k_m.gguf")
    attention = gemma.spec.layers[0].attention
    assert (attention.window, attention.scale, attention.rope.theta) == (512, 1 / 16, 1e4)
    assert gemma.spec.layers[5].attention.window == 0 and not gemma.spec.one_plus_norms
