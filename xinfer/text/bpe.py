"""The codec over the `tokenizers` library: all of tokenizer.json, and the BPE vocabularies of GGUF files."""

import re
import threading
from collections.abc import Iterable, Mapping, Sequence

from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

from xinfer.errors import CheckpointError
from xinfer.text.pretokenize import PreTokenizer

SPACE = "\u2581"  # stands for a space in SentencePiece vocabularies
BYTE_TOKEN = re.compile("<0x([0-9A-Fa-f]{2})>")


def byte_alphabet() -> dict[str, int]:
    """GPT-2's letters for the 256 bytes: printable Latin-1 is itself, the others U+0100 and on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    letters = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if byte not in set(printable))
    return letters | {chr(0x100 + i): byte for i, byte in enumerate(others)}


_ALPHABET = byte_alphabet()


def byte_level_bytes(token: str) -> bytes:
    """The bytes of a token written in the byte alphabet; a letter outside it stands for itself."""
    try:
        return bytes([_ALPHABET[letter] for letter in token])
    except KeyError:
        return token.encode()


def byte_token_value(token: str) -> int | None:
    """0x41 of "<0x41>", None of any other token."""
    hit = BYTE_TOKEN.fullmatch(token)
    return int(hit[1], 16) if hit else None


def spaced_bytes(token: str) -> bytes:
    """The bytes of a token of a SentencePiece-like vocabulary: "▁the" is b" the", "<0x0A>" is a newline."""
    byte = byte_token_value(token)
    return bytes([byte]) if byte is not None else token.replace(SPACE, " ").encode()


class LibraryCodec:
    """A `tokenizers` tokenizer.

    literal: ids whose text is meant as it stands; the others are spelled byte_level, or with "▁" for a space.
    tokens: the text of every id, for vocabularies in which one text has two ids; the library knows only one.
    """

    def __init__(
        self,
        library: Tokenizer,
        *,
        byte_level: bool,
        literal: Mapping[int, str],
        tokens: Sequence[str] | None = None,
    ) -> None:
        self.library = library
        self.size = library.get_vocab_size(with_added_tokens=True) if tokens is None else len(tokens)
        self._tokens = tokens
        self._spell = byte_level_bytes if byte_level else spaced_bytes
        self._literal = literal
        self._pieces: dict[int, bytes] = {}
        self._lock = threading.Lock()  # encode_special_tokens is a switch on the shared object

    def encode(self, text: str, parse_special: bool) -> list[int]:
        with self._lock:
            self.library.encode_special_tokens = not parse_special
            return self.library.encode(text, add_special_tokens=False).ids

    def piece(self, token: int) -> bytes:
        found = self._pieces.get(token)
        if found is None:
            text = self._literal.get(token)
            if text is not None:
                found = text.encode()
            else:
                name = self._name(token)
                found = b"" if name is None else self._spell(name)
            self._pieces[token] = found
        return found

    def _name(self, token: int) -> str | None:
        if self._tokens is not None:
            return self._tokens[token] if 0 <= token < self.size else None
        return self.library.id_to_token(token) if 0 <= token < 1 << 31 else None


def build_bpe(
    tokens: Sequence[str],
    merges: Iterable[str],
    rules: PreTokenizer,
    *,
    control: Sequence[int],
    literal: Sequence[int],
) -> LibraryCodec:
    """A codec from the lists of a GGUF file.

    merges: "left right", best first. control: ids found in text only when asked to parse special tokens;
    literal: ids found in text always, before it is cut into words.
    """
    ids = {token: i for i, token in enumerate(tokens)}
    library = Tokenizer(
        models.BPE(
            vocab=ids,
            merges=[_pair(merge, ids) for merge in merges],
            ignore_merges=rules.ignore_merges,
            byte_fallback=not rules.byte_level,
        )
    )
    if not rules.byte_level:
        library.normalizer = normalizers.Replace(" ", SPACE)
    elif rules.nfc:
        library.normalizer = normalizers.NFC()
    steps = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in rules.patterns]
    if rules.byte_level:
        steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    if steps:
        library.pre_tokenizer = pre_tokenizers.Sequence(steps)
    library.add_tokens([AddedToken(tokens[i], special=False, normalized=False) for i in literal])
    library.add_special_tokens([AddedToken(tokens[i], special=True, normalized=False) for i in control])
    texts = {i: tokens[i] for i in (*control, *literal)}
    return LibraryCodec(library, byte_level=rules.byte_level, literal=texts, tokens=tokens)


def _pair(merge: str, ids: Mapping[str, int]) -> tuple[str, str]:
    """ "a b" -> ("a", "b"), both and "ab" being tokens; the first letter may itself be a space."""
    cut = merge.find(" ", 1)
    left, right = merge[:cut], merge[cut + 1 :]
    if cut < 0 or left not in ids or right not in ids or left + right not in ids:
        raise CheckpointError(
            f"tokenizer.ggml.merges has {merge!r}, which makes no token of two others: convert it again"
        )
    return left, right
