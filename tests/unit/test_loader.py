"""Weights as the decoder sees them, against fused matrices made directly from the tensors of the file."""

import gguf
import numpy as np
import pytest
from tiny_files import CONFIG, DIM, WIDTH, gguf_name, llama_tensors, write_folder, write_gguf

from xinfer.device.cpu import CpuDevice
from xinfer.errors import OutOfMemoryError, UnsupportedError
from xinfer.formats import FORMATS
from xinfer.load import loader
from xinfer.load.checkpoint import open_checkpoint
from xinfer.load.gguf import GgufFile
from xinfer.load.loader import dummy_weights, load_weights, weight_bytes
from xinfer.models.gemma3 import bf16
from xinfer.tensor import DType

PADDED = 128  # WIDTH rounded up to 64
MIXED = {"v_proj": "Q8_0", "q_proj": "Q4_0", "k_proj": "Q4_0", "gate_proj": "Q4_0", "up_proj": "Q8_0"}


class HostGpu(CpuDevice):
    """Host memory that asks for packed weights, as a GPU does."""

    kind = "cuda"


def dense(weight) -> np.ndarray:
    assert weight.planes == ()
    return weight.dense.numpy()


def fused_glu(gate: np.ndarray, up: np.ndarray) -> np.ndarray:
    """[2*PADDED, K] from [WIDTH, K]: runs of 8 rows of gate, then 8 of up, zeros behind WIDTH."""
    rows = np.zeros((2 * PADDED, gate.shape[1]), gate.dtype)
    for i in range(WIDTH):
        rows[i // 8 * 16 + i % 8] = gate[i]
        rows[i // 8 * 16 + 8 + i % 8] = up[i]
    return rows


def expected(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Fused f32 matrices and vectors by name, from f32 tensors with the names of Hugging Face."""
    out = {"embed": tensors["model.embed_tokens.weight"], "norm": tensors["model.norm.weight"]}
    out["head"] = tensors.get("lm_head.weight", out["embed"])
    for i in range(CONFIG["num_hidden_layers"]):
        at = f"model.layers.{i}."
        q, k, v, o = (tensors[f"{at}self_attn.{name}_proj.weight"] for name in "qkvo")
        gate, up, down = (tensors[f"{at}mlp.{name}_proj.weight"] for name in ("gate", "up", "down"))
        out[f"layers.{i}.qkv"] = np.concatenate([q, k, v])
        out[f"layers.{i}.o"] = o
        out[f"layers.{i}.glu"] = fused_glu(gate, up)
        out[f"layers.{i}.down"] = np.pad(down, ((0, 0), (0, PADDED - WIDTH)))
        out[f"layers.{i}.attn_norm"] = tensors[at + "input_layernorm.weight"]
        out[f"layers.{i}.ffn_norm"] = tensors[at + "post_attention_layernorm.weight"]
    return out


def check_dense(weights, wanted: dict[str, np.ndarray]) -> None:
    assert weights.keys() == wanted.keys()
    for name, array in wanted.items():
        got = weights[name].numpy() if array.ndim == 1 else dense(weights[name])
        assert got.dtype == np.float32 and np.array_equal(got, array), name
        if array.ndim == 2:
            assert (weights[name].n, weights[name].k) == array.shape


@pytest.mark.parametrize("piece", [1 << 10, 1 << 22])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_folder_on_the_cpu(tmp_path, monkeypatch, dtype, piece):
    monkeypatch.setattr(loader, "_PIECE", piece)
    tensors = llama_tensors(dtype=dtype)
    checkpoint = open_checkpoint(write_folder(tmp_path / "m", tensors=tensors))
    reports = []
    weights = load_weights(
        checkpoint, CpuDevice(), DType.F32, lambda done, total: reports.append((done, total))
    )
    check_dense(weights, expected({name: array.astype(np.float32) for name, array in tensors.items()}))
    assert reports == sorted(reports) and reports[-1][0] == reports[-1][1]
    assert weight_bytes(checkpoint, "cpu", DType.F32) == weights.nbytes


def test_tied_head_is_the_embedding(tmp_path):
    tied = CONFIG | {"tie_word_embeddings": True}
    checkpoint = open_checkpoint(write_folder(tmp_path / "m", tied, llama_tensors(tied)))
    weights = load_weights(checkpoint, CpuDevice(), DType.F32)
    assert weights["head"] is weights["embed"]


def dequantised(path) -> dict[str, np.ndarray]:
    """f32 tensors of a GGUF file by its own names, by the `gguf` package; q and k rows as stored."""
    return {
        name: gguf.quants.dequantize(raw.matrix(), gguf.GGMLQuantizationType(raw.ggml_type)).reshape(
            raw.shape
        )
        for name, raw in GgufFile(path).tensors.items()
    }


def unpermuted(rows: np.ndarray, heads: int) -> np.ndarray:
    """Pair order -> half order, the other way round than the converter."""
    pairs = rows.reshape(heads, -1, 2, rows.shape[1])
    return pairs.swapaxes(1, 2).reshape(rows.shape)


def gguf_tensors(path, names: list[str]) -> dict[str, np.ndarray]:
    """The dequantised tensors under Hugging Face names, rows of q and k back in half order."""
    stored, out = dequantised(path), {}
    for name in names:
        array = stored[gguf_name(name)]
        heads = 4 if "q_proj" in name else 2 if "k_proj" in name else 0
        out[name] = unpermuted(array, heads) if heads else array
    return out


def test_gguf_on_the_cpu(tmp_path):
    tensors = llama_tensors()
    path = write_gguf(tmp_path / "m.gguf", tensors, MIXED | {"embed": "Q8_0"})
    weights = load_weights(open_checkpoint(path), CpuDevice(), DType.F32)
    check_dense(weights, expected(gguf_tensors(path, list(tensors))))
    q = tensors["model.layers.0.self_attn.q_proj.weight"].astype(np.float32)
    assert np.abs(dense(weights["layers.0.qkv"])[:64] - q).max() < 0.5  # the rows are where they were


def planes(weight) -> list[np.ndarray]:
    assert weight.dense is None
    return [plane.numpy() for plane in weight.planes]


def check_packed(weight, raw: np.ndarray, format: str) -> None:
    """The planes are those of the whole fused matrix packed at once."""
    assert weight.format is FORMATS[format] and weight.n == len(raw)
    packed = FORMATS[format].pack(np.ascontiguousarray(raw))
    sizes = [plane.nbytes for plane in FORMATS[format].planes(weight.n, weight.k)]
    assert sizes == [len(array) for array in packed]
    for got, array in zip(planes(weight), packed, strict=True):
        assert np.array_equal(got, array)
    assert all(plane.ptr % 256 == 0 for plane in weight.planes)


@pytest.mark.parametrize("piece", [1 << 10, 1 << 22])
def test_folder_packed(tmp_path, monkeypatch, piece):
    monkeypatch.setattr(loader, "_PIECE", piece)
    tensors = llama_tensors()
    checkpoint = open_checkpoint(write_folder(tmp_path / "m", tensors=tensors))
    weights = load_weights(checkpoint, HostGpu(), DType.BF16)
    for name, array in expected(tensors).items():
        if array.ndim == 1:
            assert np.array_equal(weights[name].numpy(), array.astype(np.float32))
        else:
            check_packed(weights[name], np.ascontiguousarray(array).view(np.uint8), "bf16")
    assert weight_bytes(checkpoint, "cuda", DType.BF16) == weights.nbytes


def test_gguf_packed_and_mixed(tmp_path):
    tensors = llama_tensors()
    path = write_gguf(tmp_path / "m.gguf", tensors, MIXED | {"down_proj": "Q4_0", "o_proj": "Q8_0"})
    weights = load_weights(open_checkpoint(path), HostGpu(), DType.BF16)
    stored = {name: raw.matrix() for name, raw in GgufFile(path).tensors.items()}
    q, k = (unpermuted(stored[f"blk.0.attn_{name}.weight"], n) for name, n in (("q", 4), ("k", 2)))
    qk, v = weights["layers.0.qkv"]
    check_packed(qk, np.concatenate([q, k]), "q4_0")
    check_packed(v, stored["blk.0.attn_v.weight"], "q8_0")
    check_packed(weights["layers.0.o"], stored["blk.0.attn_output.weight"], "q8_0")
    check_packed(weights["layers.0.down"], np.pad(stored["blk.0.ffn_down.weight"], ((0, 0), (0, 18))), "q4_0")
    values = dequantised(path)
    glu = fused_glu(values["blk.0.ffn_gate.weight"], values["blk.0.ffn_up.weight"])
    rounded = np.array([bf16(value) for value in glu.reshape(-1)], np.float32).reshape(glu.shape)
    high = (rounded.view(np.uint32) >> 16).astype(np.uint16)
    check_packed(weights["layers.0.glu"], high.view(np.uint8), "bf16")


def test_f32_on_a_gpu_is_dense(tmp_path):
    checkpoint = open_checkpoint(write_gguf(tmp_path / "m.gguf", llama_tensors(), MIXED))
    weights = load_weights(checkpoint, HostGpu(), DType.F32)
    assert dense(weights["layers.0.qkv"]).shape == (128, DIM)
    assert weight_bytes(checkpoint, "cuda", DType.F32) == weights.nbytes


def test_biases(tmp_path):
    config = CONFIG | {"attention_bias": True}
    tensors = llama_tensors()
    for i in range(2):
        for name, n in (("q", 64), ("k", 32), ("v", 32), ("o", 64)):
            bias = np.random.default_rng(n).standard_normal(n).astype(np.float16)
            tensors[f"model.layers.{i}.self_attn.{name}_proj.bias"] = bias
    weights = load_weights(
        open_checkpoint(write_folder(tmp_path / "m", config, tensors)), CpuDevice(), DType.F32
    )
    parts = [tensors[f"model.layers.1.self_attn.{name}_proj.bias"] for name in "qkv"]
    assert np.array_equal(weights["layers.1.qkv_bias"].numpy(), np.concatenate(parts).astype(np.float32))
    assert weights["layers.1.o_bias"].numpy().shape == (64,)


def test_norms_of_gemma_gain_one():
    from test_checkpoint import OWN_GOLDENS

    checkpoint = open_checkpoint(OWN_GOLDENS / "gemma3")
    weights = load_weights(checkpoint, CpuDevice(), DType.F32)
    for name in ("norm", "layers.3.q_norm", "layers.0.attn_post_norm"):
        raw = checkpoint.tensors[name].data.view(np.uint16).astype(np.uint32) << 16
        assert np.array_equal(weights[name].numpy(), raw.view(np.float32) + np.float32(1))


def test_too_little_memory(tmp_path, monkeypatch):
    checkpoint = open_checkpoint(write_folder(tmp_path / "m"))
    monkeypatch.setattr(CpuDevice, "free_bytes", 1000)
    with pytest.raises(OutOfMemoryError, match=r"the weights take [\d,]+ bytes, 1,000 of"):
        load_weights(checkpoint, CpuDevice(), DType.F32)


def test_unsupported_type_is_named(tmp_path):
    checkpoint = open_checkpoint(write_gguf(tmp_path / "m.gguf", llama_tensors(), {"o_proj": "MXFP4"}))
    with pytest.raises(
        UnsupportedError, match=r"'blk\.0\.attn_output\.weight' is MXFP4, which is not supported"
    ):
        load_weights(checkpoint, CpuDevice(), DType.F32)


@pytest.mark.parametrize("device, act", [(CpuDevice(), DType.F32), (HostGpu(), DType.BF16)])
def test_dummy_weights(tmp_path, device, act):
    spec = open_checkpoint(write_folder(tmp_path / "m", tensors={}), weights=False).spec
    weights, again = (dummy_weights(spec, device, act) for _ in range(2))
    real = load_weights(open_checkpoint(write_folder(tmp_path / "m")), device, act)
    assert weights.keys() == real.keys()
    assert weight_bytes(spec, device.kind, act) == weights.nbytes == real.nbytes
    assert np.array_equal(weights.memory.numpy()[: 72 * 64], again.memory.numpy()[: 72 * 64])
    assert (weights["norm"].numpy() == 1).all()
    for name, weight in real.items():
        if hasattr(weight, "planes"):
            assert (weights[name].n, weights[name].k) == (weight.n, weight.k)
            assert len(weights[name].planes) == len(weight.planes)


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3"])
def test_goldens_of_others_load(shared, name):
    checkpoint = open_checkpoint(shared / "goldens" / "tiny" / name)
    weights = load_weights(checkpoint, CpuDevice(), DType.F32)
    assert dense(weights["layers.3.down"]).shape == (64, 128)


def test_a_real_file_loads(models):
    path = models / "SmolLM2-135M-Instruct.Q4_1.gguf"
    weights = load_weights(open_checkpoint(path), CpuDevice(), DType.F32)
    raw = GgufFile(path).tensors["blk.29.ffn_down.weight"]
    wanted = gguf.quants.dequantize(raw.matrix(), gguf.GGMLQuantizationType(raw.ggml_type))
    assert np.array_equal(dense(weights["layers.29.down"]), wanted)
