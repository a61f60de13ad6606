"""What the engine gives back: Chunk while a reply is made, Completion when it is whole."""

from collections import deque
from dataclasses import dataclass, field

from xinfer.sched.request import Request, State
from xinfer.text.stream import Detokenizer, StopMatcher


@dataclass(frozen=True, slots=True)
class Chunk:
    """What one step added to a reply: `text` may be empty while a character is incomplete. The last chunk has
    a `finish_reason`: "stop", "length" or "cancelled"."""

    text: str
    token_ids: list[int]
    finish_reason: str | None = None


@dataclass(frozen=True, slots=True)
class Completion:
    """A whole reply. `token_ids` includes the token that ended it; `text` excludes end tokens and stop
    strings."""

    prompt_ids: list[int]
    token_ids: list[int]
    text: str
    finish_reason: str


@dataclass(eq=False, slots=True)
class Reply:
    """A request and the text made of it so far; `chunks` wait for whoever reads the reply."""

    request: Request
    detokenizer: Detokenizer
    stops: StopMatcher
    chunks: deque[Chunk] = field(default_factory=deque)

    def push(self, token: int) -> bool:
        """Take the next token, after the scheduler has; true when a stop string ends the reply here. Stop
        strings do not count before min_tokens."""
        request, stopped = self.request, False
        over = request.state is State.FINISHED
        text = "" if over and request.finish_reason == "stop" else self.detokenizer.push(token)
        if over:
            text += self.detokenizer.flush()
        if len(request.output_ids) >= request.params.min_tokens:
            text, stopped = self.stops.push(text)
        if over and not stopped:
            text += self.stops.flush()
        self.chunks.append(Chunk(text, [token], "stop" if stopped else request.finish_reason))
        return stopped and not over

    def cancel(self) -> None:
        """End the reply where it is."""
        self.chunks.append(Chunk("", [], "cancelled"))

    @property
    def finished(self) -> bool:
        """Whether the last chunk has been made."""
        return bool(self.chunks) and self.chunks[-1].finish_reason is not None
