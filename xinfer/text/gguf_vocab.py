"""The vocabulary of a GGUF file: the keys tokenizer.ggml.* of its metadata, read as llama.cpp reads them."""

from collections.abc import Mapping, Sequence
from operator import index

from xinfer.errors import CheckpointError, UnsupportedError
from xinfer.text.bpe import LibraryCodec, build_bpe
from xinfer.text.pretokenize import PRE_TOKENIZERS, pre_tokenizer
from xinfer.text.spm import SpmCodec
from xinfer.text.stops import END_TOKENS, stop_ids
from xinfer.text.vocabulary import Vocabulary

KEY = "tokenizer.ggml."
MODELS = ("gemma4", "gpt2", "llama")
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6  # entries of token_type
ROLES = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
PHI3_KEEPS_SPACE = ("<unk>", "<s>", "<|endoftext|>")


def read_gguf(metadata: Mapping[str, object]) -> Vocabulary:
    """A Vocabulary from GGUF metadata.

    Raises UnsupportedError for a tokenizer model outside MODELS, CheckpointError for missing or short lists.
    """
    model = metadata.get(KEY + "model")
    if model not in MODELS:
        known = ", ".join(MODELS)
        raise UnsupportedError(f"{KEY}model is {model!r}, and only these vocabularies can be read: {known}")
    tokens = [str(token) for token in _list(metadata, "tokens")]
    types = _list(metadata, "token_type", len(tokens), NORMAL)
    names = {
        role: tokens[token]
        for role, key in ROLES.items()
        if (token := _id(metadata, key, len(tokens))) is not None
    }
    bos, eos = _id(metadata, "bos", len(tokens)), _id(metadata, "eos", len(tokens))
    hidden = [i for i, kind in enumerate(types) if kind in (UNKNOWN, CONTROL)]
    ends = set(END_TOKENS)
    # End tokens are often mistyped as text; as in llama.cpp they count as control tokens.
    mistyped = [i for i, token in enumerate(tokens) if token in ends and types[i] not in (UNKNOWN, CONTROL)]
    control = hidden + mistyped
    literal = [i for i, kind in enumerate(types) if kind == USER_DEFINED and i not in mistyped]
    if model == "llama":
        bos = 1 if bos is None and len(tokens) > 2 else bos
        eos = 2 if eos is None and len(tokens) > 2 else eos
        codec, add_bos, drop_space = _spm(metadata, tokens, types, control, literal)
    else:
        codec, add_bos = _bpe(metadata, model, tokens, types, control, literal)
        drop_space = False
    add_bos = bool(metadata.get(KEY + "add_bos_token", add_bos))
    if metadata.get(KEY + "pre") == "gemma4" or model == "gemma4":
        add_bos = True  # early files say false, and the model is useless without
    add_eos = bool(metadata.get(KEY + "add_eos_token", False))
    stops = _stops(metadata, tokens, hidden, mistyped, eos)
    return Vocabulary(
        codec,
        bos,
        eos,
        prefix=(bos,) if add_bos and bos is not None else (),
        suffix=(eos,) if add_eos and eos is not None else (),
        hidden=frozenset(hidden) | frozenset(stops),
        stops=stops,
        drop_space=drop_space,
        names=names,
    )


def _spm(
    metadata: Mapping[str, object],
    tokens: list[str],
    types: Sequence[int],
    control: list[int],
    literal: list[int],
) -> tuple[SpmCodec, bool, bool]:
    """-> codec, the family's add_bos, whether text begins with a space of its own."""
    scores = [float(score) for score in _list(metadata, "scores", len(tokens), 0.0)]
    add_space = bool(metadata.get(KEY + "add_space_prefix", True))
    barred = set(control)
    mergeable = [i for i, kind in enumerate(types) if kind != BYTE and i not in barred]
    unknown = _id(metadata, "unknown", len(tokens))
    name = str(metadata.get("general.name", "")).lower()
    swallow = []
    if "phi-3" in name or "phi3" in name:  # its special tokens eat the whitespace after them; no key says so
        swallow = [i for i in (*control, *literal) if tokens[i] not in PHI3_KEEPS_SPACE]
    codec = SpmCodec(
        tokens,
        scores,
        mergeable,
        control=control,
        literal=literal,
        swallow=swallow,
        unknown=0 if unknown is None else unknown,
        add_space=add_space,
    )
    return codec, True, add_space


def _bpe(
    metadata: Mapping[str, object],
    model: str,
    tokens: list[str],
    types: Sequence[int],
    control: list[int],
    literal: list[int],
) -> tuple[LibraryCodec, bool]:
    """-> codec, the family's add_bos."""
    if model == "gemma4":
        rules = PRE_TOKENIZERS["gemma4"]
    else:
        pre = metadata.get(KEY + "pre")
        rules = pre_tokenizer(None if pre is None else str(pre))
    if not rules.byte_level:
        # Runs of newlines are tokens that no merge makes.
        runs = (i for i, token in enumerate(tokens) if types[i] == NORMAL and not token.strip("\n"))
        literal = literal + [i for i in runs if tokens[i]]
    merges = _list(metadata, "merges")
    return build_bpe(tokens, merges, rules, control=control, literal=literal), rules.add_bos


def _stops(
    metadata: Mapping[str, object],
    tokens: list[str],
    hidden: list[int],
    mistyped: list[int],
    eos: int | None,
) -> tuple[int, ...]:
    """Ids that end a reply. "</s>" typed as text is text: Gemma 3 has it among the HTML tags."""
    special = {tokens[i]: i for i in hidden}
    special |= {tokens[i]: i for i in mistyped if tokens[i] != "</s>"}
    said = [_id(metadata, key, len(tokens)) for key in ("eot", "eom")]
    return stop_ids(special, {"eos_token_id": [i for i in (eos, *said) if i is not None]})


def _id(metadata: Mapping[str, object], role: str, count: int) -> int | None:
    """tokenizer.ggml.{role}_token_id, or None when absent or out of range (files write 2^32-1 for none)."""
    value = metadata.get(f"{KEY}{role}_token_id")
    if value is None:
        return None
    try:
        token = index(value)
    except TypeError as error:
        raise CheckpointError(f"{KEY}{role}_token_id is {value!r}, not a number: convert it again") from error
    return token if 0 <= token < count else None


def _list(metadata: Mapping[str, object], key: str, count: int | None = None, default: object = None) -> list:
    """A list of the metadata as Python values, checked to have at least `count` entries."""
    value = metadata.get(KEY + key)
    if value is None:
        if count is None:
            raise CheckpointError(f"the file has no {KEY}{key}: it is not a complete model, convert it again")
        return [default] * count
    value = value.tolist() if hasattr(value, "tolist") else list(value)
    if count is not None and len(value) < count:
        raise CheckpointError(
            f"{KEY}{key} has {len(value)} entries, the vocabulary {count}: convert it again"
        )
    return value
