"""Make tests/goldens/tiny: small random checkpoints and the logits that transformers gives for them.

Needs torch and transformers, which the product does not: run it in an environment of its own. The weights are
stored as bf16 and evaluated in f32. Every norm and bias is random, so that a forgotten one shows.

    python scripts/make_goldens.py [name ...]
"""

import argparse
import json
from pathlib import Path

import numpy as np
import torch
import transformers

FOLDER = Path(__file__).resolve().parent.parent / "tests" / "goldens" / "tiny"
TOKENS = 24
COMMON = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "vocab_size": 256,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-6,
    "initializer_range": 0.2,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 64}
GEMMA3_ROPES = {
    "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}
# name -> (configuration class, what differs from COMMON)
MODELS = {
    "llama": ("LlamaConfig", {"head_dim": 16, "rope_parameters": LLAMA3}),
    "qwen2": ("Qwen2Config", {"vocab_size": 200}),
    "qwen3": (
        "Qwen3Config",
        {
            "head_dim": 32,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "rope_parameters": YARN,
            "tie_word_embeddings": True,
        },
    ),
    "gemma3": (
        "Gemma3TextConfig",
        {
            "num_hidden_layers": 7,
            "head_dim": 16,
            "num_attention_heads": 4,
            "num_key_value_heads": 1,
            "intermediate_size": 24,
            "sliding_window": 8,
            "query_pre_attn_scalar": 24,
            "rope_parameters": GEMMA3_ROPES,
            "tie_word_embeddings": True,
        },
    ),
}


def randomize(model: torch.nn.Module) -> None:
    """Noise on everything that a fresh model has as zeros or ones."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)


def make(name: str) -> None:
    """Write the checkpoint of one model and its golden: ids i64 [1,T], logits f32 [1,T,V]."""
    kind, own = MODELS[name]
    config = getattr(transformers, kind)(**(COMMON | own))
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config)
    randomize(model)
    folder = FOLDER / name
    model.to(torch.bfloat16).save_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    generator = torch.Generator().manual_seed(7)
    ids = torch.randint(3, config.vocab_size, (1, TOKENS), generator=generator)
    with torch.no_grad():
        logits = model(ids).logits
    np.savez_compressed(folder / "golden.npz", ids=ids.numpy(), logits=logits.numpy())
    sizes = {file.name: file.stat().st_size for file in sorted(folder.iterdir())}
    print(name, json.dumps(sizes), f"largest logit {logits.abs().max():.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help=f"some of {', '.join(MODELS)}; all by default")
    for name in parser.parse_args().names or MODELS:
        make(name)


if __name__ == "__main__":
    main()
