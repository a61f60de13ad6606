"""Tokenizer: text to token ids and back, the same for every model file."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from xinfer.errors import RequestError
from xinfer.text.gguf_vocab import read_gguf
from xinfer.text.hf_folder import read_folder
from xinfer.text.vocabulary import Vocabulary


class Tokenizer:
    """bos_id, eos_id: None when the model has none. eos_ids: every id that ends a reply, ascending.

    special_ids are left out of decoded text. special_names: "bos_token" -> its text, ..., for templates.
    vocab_size counts the tokens of the vocabulary; logits may have more columns, and those decode to "".
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._codec = vocabulary.codec
        self.vocab_size = vocabulary.codec.size
        self.bos_id = vocabulary.bos_id
        self.eos_id = vocabulary.eos_id
        self.eos_ids = vocabulary.stops
        self.add_bos = vocabulary.bos_id is not None and vocabulary.bos_id in vocabulary.prefix
        self.add_eos = vocabulary.eos_id is not None and vocabulary.eos_id in vocabulary.suffix
        self.special_ids = vocabulary.hidden
        self.special_names = vocabulary.names
        self.drop_space = vocabulary.drop_space

    @classmethod
    def from_hf_folder(cls, path: str | Path) -> "Tokenizer":
        """From tokenizer.json and the configuration files beside it."""
        return cls(read_folder(Path(path)))

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, object]) -> "Tokenizer":
        """From the metadata of a GGUF file (keys tokenizer.ggml.*)."""
        return cls(read_gguf(metadata))

    def encode(self, text: str, add_special: bool = True, parse_special: bool = True) -> list[int]:
        """Ids of the text.

        add_special puts the bos token (and what else the family wants) around it. parse_special reads names
        of special tokens in the text as those tokens, which text of strangers must not be trusted with.
        """
        ids = self._codec.encode(_checked(text), parse_special)
        return [*self._vocabulary.prefix, *ids, *self._vocabulary.suffix] if add_special else ids

    def encode_prompt(self, text: str) -> list[int]:
        """Ids of a rendered prompt: with the bos token, but not twice when a template has written it."""
        ids = self.encode(text, add_special=False)
        prefix = self._vocabulary.prefix
        return ids if tuple(ids[: len(prefix)]) == prefix else [*prefix, *ids]

    def decode(self, ids: Iterable[int], skip_special: bool = True) -> str:
        """Text of the ids; bytes that are not UTF-8 become U+FFFD."""
        data = b"".join(self.visible_bytes(token, skip_special) for token in ids)
        if self.drop_space and data.startswith(b" "):
            data = data[1:]
        return data.decode("utf-8", "replace")

    def token_bytes(self, token: int) -> bytes:
        """The bytes of one token, a special token's name included; b"" for an id outside the vocabulary."""
        return self._codec.piece(token)

    def visible_bytes(self, token: int, skip_special: bool = True) -> bytes:
        """token_bytes, or b"" for a special token that is skipped."""
        return b"" if skip_special and token in self.special_ids else self._codec.piece(token)


def _checked(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestError(
            f"the text is not Unicode: character {error.start} is half of a surrogate pair, remove it"
        ) from error
    return text
