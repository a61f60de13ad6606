"""Span and Step: what the scheduler hands to the runner. Plain data, no device."""

from dataclasses import dataclass

from xinfer.sched.request import Request


@dataclass(frozen=True, slots=True)
class Span:
    """Run `count` known tokens of `request` from position `start`. `samples`: they reach the last known
    token, so the logits of the last position choose the next one."""

    request: Request
    start: int
    count: int
    samples: bool

    @property
    def end(self) -> int:
        return self.start + self.count

    @property
    def token_ids(self) -> list[int]:
        return self.request.tokens(self.start, self.count)


@dataclass(frozen=True, slots=True)
class Step:
    """One pass of the model. `decode`: every span continues a running reply (the shape that graphs are
    captured for); otherwise a prefill of one or several requests. `admitted`: requests of this step that have
    just been given their row, whose counts and biases must be set from their known tokens before they
    sample."""

    spans: tuple[Span, ...]
    decode: bool
    admitted: tuple[Request, ...] = ()

    @property
    def num_tokens(self) -> int:
        return sum(span.count for span in self.spans)
