"""Makes the two tiny tokenizers beside this file: python tests/goldens/tokenizers/make.py

byte_level: byte-level BPE cut as Llama 3 cuts, with a bos token from the post-processor, and chat tokens.
spaced: SentencePiece-like BPE with byte fallback, as Llama 2 has it; merges sorted by rank of their union.
"""

import json
from pathlib import Path

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

HERE = Path(__file__).resolve().parent
WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
SPACES = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
TEXT = """
A tokenizer turns text into numbers and numbers into text. The quick brown fox jumps over the lazy dog, and
the dog doesn't mind; it's used to foxes. There were 1234 foxes in 2024, they say, and 99 dogs. We'll see!
Der schnelle braune Fuchs springt über den faulen Hund. Größe, Straße, Übung, müßig, Bär, Höhe.
Le renard brun saute par-dessus le chien paresseux, déjà vu à côté de la forêt où l'été finit.
Быстрая коричневая лиса перепрыгивает через ленивую собаку. 素早い茶色の狐は怠け者の犬を飛び越える。
def encode(text: str) -> list[int]:
    return [word for word in text.split() if word != ""]
for i in range(10):
    print(i, i * i, "the number", i)
"""


def byte_level() -> Tokenizer:
    library = Tokenizer(models.BPE(ignore_merges=True))
    cut = pre_tokenizers.Split(Regex(WORDS + SPACES), "isolated")
    letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    library.pre_tokenizer = pre_tokenizers.Sequence([cut, letters])
    library.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=480, initial_alphabet=alphabet, show_progress=False)
    library.train_from_iterator([TEXT], trainer)
    library.add_special_tokens(["<|begin|>", "<|end_of_text|>", "<|eot_id|>", "<|user|>"])
    library.add_tokens([AddedToken("<think>", normalized=False)])
    library.post_processor = processors.TemplateProcessing(
        single="<|begin|> $A", special_tokens=[("<|begin|>", library.token_to_id("<|begin|>"))]
    )
    return library


def spaced() -> Tokenizer:
    draft = Tokenizer(models.BPE())
    draft.normalizer = normalizers.Replace(" ", "▁")
    draft.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    draft.train_from_iterator([TEXT], trainers.BpeTrainer(vocab_size=420, show_progress=False))
    learned = sorted(draft.get_vocab().items(), key=lambda item: item[1])
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokens += [name for name, _ in learned if len(name) > 1] + [name for name, _ in learned if len(name) == 1]
    ids = {name: i for i, name in enumerate(tokens)}
    merges = [
        (name[:cut], name[cut:])
        for name in tokens[259:]
        for cut in range(1, len(name))
        if name[:cut] in ids and name[cut:] in ids
    ]
    library = Tokenizer(
        models.BPE(vocab=ids, merges=merges, byte_fallback=True, fuse_unk=True, unk_token="<unk>")
    )
    library.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    library.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    library.add_special_tokens(["<unk>", "<s>", "</s>"])
    library.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return library


def save(name: str, library: Tokenizer, config: dict[str, object]) -> None:
    folder = HERE / name
    folder.mkdir(exist_ok=True)
    value = json.loads(library.to_str())
    (folder / "tokenizer.json").write_text(json.dumps(value, ensure_ascii=False), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    bos, eos = {"content": "<|begin|>"}, "<|end_of_text|>"
    save("byte_level", byte_level(), {"bos_token": bos, "eos_token": eos})
    save(
        "spaced",
        spaced(),
        {
            "bos_token": "<s>",
            "eos_token": "</s>",
            "unk_token": "<unk>",
            "tokenizer_class": "LlamaTokenizerFast",
            "add_bos_token": True,
        },
    )
