"""The codec of SentencePiece vocabularies in GGUF files: merge the neighbours whose union has the best score.

Scores rank whole tokens, not pairs, and ties go to the left, so the BPE of the `tokenizers` library, with its
one rank per pair, cannot stand in. Text without a token falls back to one token per UTF-8 byte.
Measured with Gemma 3's 262144 tokens: built in 0.35 s, 10 000 letters of new text in 33 ms.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush

from xinfer.text.bpe import SPACE, byte_token_value, spaced_bytes

CACHED_WORDS, CACHED_LETTERS = 1 << 16, 64  # words kept, and the longest one kept: some 50 MB at most


class SpmCodec:
    """tokens, scores: one per id. mergeable: ids that text may become; byte and control tokens may not.

    control, literal: as in bpe.build_bpe. swallow: ids that eat the whitespace after them.
    add_space: a run of text at the start, or after a special token, gets a space in front.
    """

    def __init__(
        self,
        tokens: Sequence[str],
        scores: Sequence[float],
        mergeable: Iterable[int],
        *,
        control: Sequence[int],
        literal: Sequence[int],
        swallow: Iterable[int] = (),
        unknown: int | None = None,
        add_space: bool = True,
    ) -> None:
        self.size = len(tokens)
        self._tokens = tokens
        self._ids = {tokens[i]: i for i in mergeable}
        self._cost = [-score for score in scores]
        self._bytes = {
            byte: i for i, token in enumerate(tokens) if (byte := byte_token_value(token)) is not None
        }
        self._unknown = unknown
        self._add_space = add_space
        self._swallow = frozenset(swallow)
        self._named = frozenset(control) | frozenset(literal)
        self._finders = {
            False: NameFinder({tokens[i]: i for i in literal}),
            True: NameFinder({tokens[i]: i for i in self._named}),
        }
        self._words = _word_pattern(self._ids)
        self._cache: dict[str, list[int]] = {}

    def encode(self, text: str, parse_special: bool) -> list[int]:
        out: list[int] = []
        after_special, swallowing = True, False
        for part in self._finders[parse_special].split(text):
            if isinstance(part, int):
                out.append(part)
                after_special, swallowing = True, part in self._swallow
                continue
            if swallowing:
                part = part.lstrip(" \t\n\v\f\r")
            if not part:
                continue
            if after_special and self._add_space:
                part = " " + part
            after_special = swallowing = False
            for word in self._words.findall(part.replace(" ", SPACE)):
                out += self._word(word)
        return out

    def piece(self, token: int) -> bytes:
        if not 0 <= token < self.size:
            return b""
        return self._tokens[token].encode() if token in self._named else spaced_bytes(self._tokens[token])

    def _word(self, word: str) -> list[int]:
        found = self._cache.get(word)
        if found is None:
            found = [token for piece in self._merge(word) for token in self._lookup(piece)]
            if len(self._cache) >= CACHED_WORDS:
                self._cache.clear()
            if len(word) <= CACHED_LETTERS:
                self._cache[word] = found
        return found

    def _lookup(self, piece: str) -> list[int]:
        token = self._ids.get(piece)
        if token is not None:
            return [token]
        fallback = [self._bytes.get(byte, self._unknown) for byte in piece.encode()]
        return [token for token in fallback if token is not None]

    def _merge(self, word: str) -> list[str]:
        """The word as pieces: letters, merged pair by pair, best score first, leftmost among equals."""
        ids, cost = self._ids, self._cost
        pieces: list[str] = list(word)
        last = len(pieces)
        after = list(range(1, last + 1))
        before = list(range(-1, last - 1))
        queue = []
        for left in range(last - 1):
            union = word[left : left + 2]
            if union in ids:
                queue.append((cost[ids[union]], left, union))
        heapify(queue)
        while queue:
            _, left, union = heappop(queue)
            right = after[left]
            if right == last or not pieces[left] or pieces[left] + pieces[right] != union:
                continue  # one of the two has been merged since
            pieces[left], pieces[right] = union, ""
            right = after[left] = after[right]
            if right < last:
                before[right] = left
                longer = union + pieces[right]
                if longer in ids:
                    heappush(queue, (cost[ids[longer]], left, longer))
            earlier = before[left]
            if earlier >= 0:
                longer = pieces[earlier] + union
                if longer in ids:
                    heappush(queue, (cost[ids[longer]], earlier, longer))
        return [piece for piece in pieces if piece]


def _word_pattern(ids: Mapping[str, int]) -> re.Pattern[str]:
    """Cuts text where no token reaches across: before a space, unless some token has one after that letter.

    Words found by it merge alone exactly as they would in the whole text, and are worth caching.
    """
    joined: set[str] = set()
    for token in ids:
        if SPACE in token:
            inner = token.lstrip(SPACE)
            joined.update(inner[i - 1] for i, letter in enumerate(inner) if letter == SPACE)
    joined.discard(SPACE)
    letters = "".join(re.escape(letter) for letter in sorted(joined))
    if not letters:
        return re.compile(f"{SPACE}*[^{SPACE}]+|{SPACE}+")
    return re.compile(f"{SPACE}*(?:[^{SPACE}]+|(?<=[{letters}]){SPACE}+)+|{SPACE}+")


class NameFinder:
    """Finds the names of special tokens in text: leftmost first, the longest of those that begin there."""

    def __init__(self, names: Mapping[str, int]) -> None:
        self._names = {name: token for name, token in names.items() if name}
        self._lengths: dict[str, list[int]] = {}
        for name in self._names:
            lengths = self._lengths.setdefault(name[0], [])
            if len(name) not in lengths:
                lengths.append(len(name))
        for lengths in self._lengths.values():
            lengths.sort(reverse=True)
        first = "".join(re.escape(letter) for letter in self._lengths)
        self._first = re.compile(f"[{first}]") if first else None

    def split(self, text: str) -> list[str | int]:
        """The text as runs of plain text and token ids, without empty runs."""
        if self._first is None:
            return [text] if text else []
        parts: list[str | int] = []
        start = position = 0
        while (hit := self._first.search(text, position)) is not None:
            position = hit.start()
            for length in self._lengths[text[position]]:
                token = self._names.get(text[position : position + length])
                if token is not None:
                    if position > start:
                        parts.append(text[start:position])
                    parts.append(token)
                    start = position = position + length
                    break
            else:
                position += 1
        if start < len(text):
            parts.append(text[start:])
        return parts
