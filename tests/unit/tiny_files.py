"""Small model files made for a test: safetensors by hand, GGUF by the writer of the `gguf` package."""

import json
from pathlib import Path

import gguf
import ml_dtypes
import numpy as np

HEADS, KV_HEADS, HEAD_DIM, DIM, WIDTH, VOCAB = 4, 2, 16, 64, 96, 72
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": VOCAB,
    "hidden_size": DIM,
    "intermediate_size": WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 128,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
TAGS = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "uint8": "U8", "int64": "I64"}


def write_safetensors(path: Path, tensors: dict[str, np.ndarray], metadata: dict | None = None) -> Path:
    """A safetensors file; the type follows the array's."""
    header, at = {"__metadata__": metadata} if metadata else {}, 0
    for name, array in tensors.items():
        end = at + array.nbytes
        header[name] = {
            "dtype": TAGS[str(array.dtype)],
            "shape": list(array.shape),
            "data_offsets": [at, end],
        }
        at = end
    return raw_safetensors(path, header, b"".join(array.tobytes() for array in tensors.values()))


def raw_safetensors(path: Path, header: object, body: bytes) -> Path:
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + body)
    return path


def llama_tensors(config: dict = CONFIG, dtype=ml_dtypes.bfloat16, seed: int = 0) -> dict[str, np.ndarray]:
    """Random tensors of a Hugging Face Llama, name -> [N,K] or [N]."""
    random = np.random.default_rng(seed)
    dim, width = config["hidden_size"], config["intermediate_size"]
    q, kv = (config[f"num_{kind}_heads"] * config["head_dim"] for kind in ("attention", "key_value"))
    shapes = {"model.embed_tokens.weight": (config["vocab_size"], dim), "model.norm.weight": (dim,)}
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (config["vocab_size"], dim)
    for i in range(config["num_hidden_layers"]):
        at = f"model.layers.{i}."
        shapes |= {at + "input_layernorm.weight": (dim,), at + "post_attention_layernorm.weight": (dim,)}
        shapes |= {at + "self_attn.q_proj.weight": (q, dim), at + "self_attn.k_proj.weight": (kv, dim)}
        shapes |= {at + "self_attn.v_proj.weight": (kv, dim), at + "self_attn.o_proj.weight": (dim, q)}
        shapes |= {at + "mlp.gate_proj.weight": (width, dim), at + "mlp.up_proj.weight": (width, dim)}
        shapes[at + "mlp.down_proj.weight"] = (dim, width)
    return {name: random.standard_normal(shape, np.float32).astype(dtype) for name, shape in shapes.items()}


def write_folder(folder: Path, config: dict = CONFIG, tensors: dict | None = None) -> Path:
    """A model folder with config.json and, unless `tensors` is {}, model.safetensors."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    tensors = llama_tensors(config) if tensors is None else tensors
    if tensors:
        write_safetensors(folder / "model.safetensors", tensors)
    return folder


GGUF_WORDS = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_name(name: str) -> str:
    """model.layers.0.mlp.up_proj.weight -> blk.0.ffn_up.weight"""
    name = name.replace("model.layers.", "blk.")
    for hf, own in GGUF_WORDS.items():
        name = name.replace(hf, own)
    return name


def permuted(rows: np.ndarray, heads: int) -> np.ndarray:
    """Rows of q or k as the converter to GGUF stores them for Llama."""
    halves = rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(rows.shape))


def write_gguf(
    path: Path,
    tensors: dict[str, np.ndarray],
    kinds: dict[str, str] | None = None,
    extra: dict[str, np.ndarray] | None = None,
    arch: str = "llama",
    alignment: int = 32,
    **keys: object,
) -> Path:
    """A GGUF model from Hugging Face tensors; `kinds`: part of a name -> type to quantise to, else F32."""
    writer = gguf.GGUFWriter(path, arch)
    writer.add_context_length(128)
    writer.add_embedding_length(DIM)
    writer.add_block_count(CONFIG["num_hidden_layers"])
    writer.add_feed_forward_length(WIDTH)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([f"t{i}" for i in range(VOCAB)])
    writer.add_eos_token_id(2)
    if alignment != 32:
        writer.add_custom_alignment(alignment)
    for key, value in keys.items():
        writer.add_key_value(key.replace("__", "."), value, _kind(value))
    for name, array in tensors.items():
        if arch == "llama" and ("q_proj" in name or "k_proj" in name):
            array = permuted(array, HEADS if "q_proj" in name else KV_HEADS)
        array = np.ascontiguousarray(array.astype(np.float32))
        kind = next((kind for part, kind in (kinds or {}).items() if part in name), None)
        if kind is None or array.ndim == 1:
            writer.add_tensor(gguf_name(name), array)
        else:
            quant = gguf.GGMLQuantizationType[kind]
            writer.add_tensor(gguf_name(name), gguf.quants.quantize(array, quant), raw_dtype=quant)
    for name, array in (extra or {}).items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _kind(value: object) -> gguf.GGUFValueType:
    return gguf.GGUFValueType.get_type(value)
