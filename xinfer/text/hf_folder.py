"""The vocabulary of a Hugging Face folder: tokenizer.json and the configuration files beside it."""

import json
from collections.abc import Mapping
from pathlib import Path

from tokenizers import AddedToken, Tokenizer

from xinfer.errors import CheckpointError, UnsupportedError
from xinfer.text.bpe import LibraryCodec
from xinfer.text.stops import stop_ids
from xinfer.text.vocabulary import Vocabulary

ROLES = ("bos_token", "eos_token", "unk_token", "pad_token")
# Of these classes the flags add_bos_token and add_eos_token outrank what tokenizer.json adds.
FLAGGED = ("Llama", "CodeLlama", "Gemma", "Cohere")


def read_folder(path: Path) -> Vocabulary:
    """A Vocabulary from a folder. Raises CheckpointError for missing or malformed files."""
    library = _library(path)
    config = read_json(path / "tokenizer_config.json")
    names = _names(read_json(path / "special_tokens_map.json"), config)
    _add_missing(library, config)
    added = library.get_added_tokens_decoder()
    byte_level, drop_space = _spelling(library, path)
    literal = {i: token.content for i, token in added.items() if byte_level or token.special}
    codec = LibraryCodec(library, byte_level=byte_level, literal=literal)
    bos, eos = (library.token_to_id(names[role]) if role in names else None for role in ROLES[:2])
    hidden = {i: token.content for i, token in added.items() if token.special}
    prefix, suffix = _frame(library, config, bos, eos)
    stops = stop_ids(
        {name: i for i, name in hidden.items()},
        {"eos_token_id": eos},
        read_json(path / "config.json"),
        read_json(path / "generation_config.json"),
    )
    return Vocabulary(
        codec,
        bos,
        eos,
        prefix=prefix,
        suffix=suffix,
        hidden=frozenset(hidden) | frozenset(stops),
        stops=stops,
        drop_space=drop_space,
        names=names,
    )


def read_json(path: Path) -> dict:
    """The object in a JSON file, {} when there is no such file."""
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointError(f"{path} is not JSON ({error}): fetch it again") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} holds a {type(value).__name__} where an object belongs")
    return value


def _library(path: Path) -> Tokenizer:
    """The `tokenizers` object, with the truncation and padding of training scripts switched off."""
    file = path / "tokenizer.json"
    if not file.is_file():
        if (path / "tokenizer.model").is_file():
            raise UnsupportedError(
                f"{path} has tokenizer.model but no tokenizer.json: save a fast tokenizer there, or use GGUF"
            )
        raise CheckpointError(f"{path} has no tokenizer.json: fetch the complete model")
    try:
        library = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises nothing narrower
        raise CheckpointError(f"{file} cannot be read ({error}): fetch it again") from error
    library.no_truncation()
    library.no_padding()
    return library


def _add_missing(library: Tokenizer, config: Mapping[str, object]) -> None:
    """Adds tokens that only tokenizer_config.json has, where they take the next id."""
    listed = config.get("added_tokens_decoder") or {}
    try:
        entries = sorted((int(key), entry["content"], entry) for key, entry in listed.items())
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise CheckpointError(
            f"added_tokens_decoder in tokenizer_config.json is malformed ({error!r}): fetch it again"
        ) from error
    for token, content, entry in entries:
        if library.token_to_id(content) is None and token == library.get_vocab_size():
            names = ("lstrip", "rstrip", "single_word", "normalized", "special")
            library.add_tokens([AddedToken(content, **{name: bool(entry.get(name)) for name in names})])


def _names(*configs: Mapping[str, object]) -> dict[str, str]:
    """The text of each role; the later config wins, and its null takes the token away."""
    names: dict[str, str] = {}
    for config in configs:
        for role in ROLES:
            if role in config:
                value = config[role]
                text = value.get("content") if isinstance(value, Mapping) else value
                names.pop(role, None)
                if isinstance(text, str) and text:
                    names[role] = text
    return names


def _spelling(library: Tokenizer, path: Path) -> tuple[bool, bool]:
    """-> (byte_level, drop_space), from the decoder of tokenizer.json.

    The decoder pickles as its JSON; parsing all of tokenizer.json again would cost a second at 256k tokens.
    """
    decoder = json.loads(library.decoder.__getstate__()) if library.decoder else {}
    steps = decoder.get("decoders", [decoder]) if decoder else []
    kinds = {step["type"]: step for step in steps}
    if "ByteLevel" in kinds:
        return True, False
    if not kinds.keys() & {"Metaspace", "Replace", "ByteFallback"}:
        said = ", ".join(kinds) or "none"
        raise UnsupportedError(
            f"the decoder in {path / 'tokenizer.json'} is {said}, "
            "and only byte-level and SentencePiece ones are known: use a GGUF file of the model"
        )
    space = kinds.get("Metaspace")
    if space is not None:
        return False, space.get("prepend_scheme", "always") != "never" and space.get("add_prefix_space", True)
    strip = kinds.get("Strip")
    return False, strip is not None and strip.get("content") == " " and strip.get("start", 0) > 0


def _frame(
    library: Tokenizer, config: Mapping[str, object], bos: int | None, eos: int | None
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Ids that belong around a prompt: what tokenizer.json adds, or what the flags of its class say."""
    plain = library.encode("a", add_special_tokens=False).ids
    full = library.encode("a", add_special_tokens=True).ids
    start = next((i for i in range(len(full)) if full[i : i + len(plain)] == plain), 0)
    prefix, suffix = tuple(full[:start]), tuple(full[start + len(plain) :])
    if str(config.get("tokenizer_class", "")).startswith(FLAGGED):
        if config.get("add_bos_token") is not None and bos is not None:
            prefix = (bos,) if config["add_bos_token"] else ()
        if config.get("add_eos_token") is not None and eos is not None:
            suffix = (eos,) if config["add_eos_token"] else ()
    return prefix, suffix
