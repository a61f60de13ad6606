"""What a tokenizer is made of, whichever file it came from: a codec, and ids with a meaning of their own."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from xinfer.errors import RequestError


class Codec(Protocol):
    """Text to token ids and token ids to bytes; adds nothing at either end."""

    size: int

    def encode(self, text: str, parse_special: bool) -> list[int]:
        """Ids of the text; with parse_special the names of control tokens in it become those tokens."""

    def piece(self, token: int) -> bytes:
        """The bytes a token stands for, a special token's name included; b"" for an id without a token."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """codec       see above
    prefix, suffix ids that belong around a prompt: usually the bos token, sometimes more
    hidden         ids that decode() leaves out when it skips special tokens
    stops          ids that end a reply, ascending
    drop_space     the family writes a space before the first word, and decode() takes it off again
    names          roles of special tokens as chat templates know them: "bos_token" -> "<s>"
    """

    codec: Codec
    bos_id: int | None
    eos_id: int | None
    prefix: tuple[int, ...] = ()
    suffix: tuple[int, ...] = ()
    hidden: frozenset[int] = frozenset()
    stops: tuple[int, ...] = ()
    drop_space: bool = False
    names: Mapping[str, str] = field(default_factory=dict)


class _Nameless:
    """Token ids that stand for no text: a model without a tokenizer, for measurements with dummy weights."""

    def __init__(self, size: int) -> None:
        self.size = size

    def encode(self, text: str, parse_special: bool) -> list[int]:
        raise RequestError("this model has no tokenizer: give the prompt as a list of token ids")

    def piece(self, token: int) -> bytes:
        return b""


def nameless(size: int) -> Vocabulary:
    """A vocabulary of `size` ids without text."""
    return Vocabulary(_Nameless(size), None, None)
