"""Tokenizers for the tests: tiny ones of our own, and what GGUF files hold."""

import json
from functools import cache
from pathlib import Path

from xinfer.text.tokenizer import Tokenizer

TINY = Path(__file__).resolve().parent.parent / "goldens" / "tokenizers"
KEY = "tokenizer.ggml."


@cache
def gguf_metadata(path: Path) -> dict[str, object]:
    try:
        from xinfer.load.gguf import GgufFile
    except ImportError:
        from gguf import GGUFReader

        return {name: entry.contents() for name, entry in GGUFReader(path).fields.items()}
    return dict(GgufFile(path).metadata)


@cache
def gguf_tokenizer(path: Path) -> Tokenizer:
    return Tokenizer.from_gguf(gguf_metadata(path))


@cache
def folder_tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.from_hf_folder(folder)


def tiny(name: str) -> Tokenizer:
    return folder_tokenizer(TINY / name)


def as_gguf(folder: Path, model: str, pre: str) -> dict[str, object]:
    """The metadata that a GGUF file made from tokenizer.json would have; scores are falling ids."""
    value = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    added = {entry["id"]: entry for entry in value["added_tokens"]}
    names = {i: name for name, i in value["model"]["vocab"].items()}
    names |= {i: entry["content"] for i, entry in added.items()}
    size = max(names) + 1
    kinds = {i: 3 if entry["special"] else 4 for i, entry in added.items()}
    if model == "llama":
        kinds |= {i: 6 for i, name in names.items() if name.startswith("<0x")}
    pairs = value["model"]["merges"]
    return {
        KEY + "model": model,
        KEY + "pre": pre,
        KEY + "tokens": [names.get(i, f"[PAD{i}]") for i in range(size)],
        KEY + "token_type": [kinds.get(i, 1 if i in names else 5) for i in range(size)],
        KEY + "scores": [float(-i) for i in range(size)],
        KEY + "merges": [pair if isinstance(pair, str) else " ".join(pair) for pair in pairs],
    }
