"""Text as tokens arrive: whole characters only, and a stop at stop strings."""

import codecs
from collections.abc import Iterable, Sequence

from xinfer.errors import RequestError
from xinfer.text.tokenizer import Tokenizer


class Detokenizer:
    """Turns the ids of one reply into text, piece by piece.

    Without a prompt all pushes and the flush together equal tokenizer.decode(ids). With one they are what
    decode(prompt + ids) has after the prompt's own text: the reply's first space stays, and a character that
    the prompt leaves open belongs to the reply.
    """

    def __init__(
        self, tokenizer: Tokenizer, prompt_ids: Sequence[int] = (), skip_special: bool = True
    ) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        tail = self._tail(prompt_ids)
        self._drop_space = tokenizer.drop_space and not tail
        self._utf8.decode(tail)

    def push(self, token: int) -> str:
        """The text that this token completes, often "" and never half a character."""
        data = self._tokenizer.visible_bytes(token, self._skip_special)
        if data and self._drop_space:
            self._drop_space = False
            data = data.removeprefix(b" ")
        return self._utf8.decode(data)

    def flush(self) -> str:
        """What is left at the end: U+FFFD for a character that never became whole, else ""."""
        return self._utf8.decode(b"", final=True)

    def _tail(self, prompt_ids: Sequence[int]) -> bytes:
        """The last 4 bytes of the prompt or more: enough to know whether it ends inside a character."""
        tail = b""
        for token in reversed(prompt_ids):
            tail = self._tokenizer.visible_bytes(token, self._skip_special) + tail
            if len(tail) >= 4:
                break
        return tail


class StopMatcher:
    """Cuts a stream of text before the first stop string, wherever the pieces' borders fall.

    The stop string that is complete first wins; of two complete at the same character, the longer. Text that
    may still become a stop string is held back.
    """

    def __init__(self, stops: str | Iterable[str] = ()) -> None:
        self._stops = (stops,) if isinstance(stops, str) else tuple(stops)
        if "" in self._stops:
            raise RequestError("a stop string is empty: every reply would end before it begins")
        self._held = ""
        self.matched: str | None = None

    def push(self, text: str) -> tuple[str, bool]:
        """-> (text to emit, stopped). After a stop nothing more is emitted."""
        if self.matched is not None:
            return "", True
        text = self._held + text
        hits = [(start + len(stop), start, stop) for stop in self._stops if (start := text.find(stop)) >= 0]
        if hits:
            _, start, self.matched = min(hits)
            self._held = ""
            return text[:start], True
        keep = len(text) - self._open(text)
        self._held = text[keep:]
        return text[:keep], False

    def flush(self) -> str:
        """The text held back, when the reply ends without a stop string."""
        held, self._held = self._held, ""
        return held

    def _open(self, text: str) -> int:
        """Length of the longest end of the text that begins a stop string."""
        longest = 0
        for stop in self._stops:
            for length in range(min(len(stop) - 1, len(text)), longest, -1):
                if text.endswith(stop[:length]):
                    longest = length
                    break
        return longest
