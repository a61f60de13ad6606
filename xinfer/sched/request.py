"""Request: one prompt on its way to a reply, and where it stands."""

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from xinfer.sampling import SamplingParams


class State(enum.Enum):
    WAITING = "waiting"  # holds no page and no row
    RUNNING = "running"
    FINISHED = "finished"  # holds none again; finish_reason is set


@dataclass(eq=False, slots=True)
class Request:
    """Known tokens are prompt_ids + output_ids. The first `num_computed` of them have their keys and values
    in the cache; in decode that is all but the last. `prefill_end` is what was known at admission: up to
    there it prefills. `pages` are its pages in order of position; `row` is its row in per-request device
    state (last token, counts). `seed` is that of its draws. `finish_reason`: "stop", "length" or "cancelled".
    Compared and hashed by identity.
    """

    id: object
    prompt_ids: Sequence[int]
    params: SamplingParams = field(default_factory=SamplingParams)
    eos_ids: Iterable[int] = ()
    seed: int = 0
    output_ids: list[int] = field(default_factory=list)
    num_computed: int = 0
    prefill_end: int = 0
    pages: list[int] = field(default_factory=list)
    row: int | None = None
    state: State = State.WAITING
    finish_reason: str | None = None
    arrival: int = -1
    preemptions: int = 0
    stop_ids: frozenset[int] = field(init=False)

    def __post_init__(self) -> None:
        eos = () if self.params.ignore_eos else self.eos_ids
        self.stop_ids = frozenset(eos) | frozenset(self.params.stop_token_ids)

    def __len__(self) -> int:
        """Tokens known."""
        return len(self.prompt_ids) + len(self.output_ids)

    @property
    def prefilling(self) -> bool:
        return self.num_computed < self.prefill_end

    def token(self, position: int) -> int:
        """The known token at a position."""
        inside = len(self.prompt_ids)
        return self.prompt_ids[position] if position < inside else self.output_ids[position - inside]

    def tokens(self, start: int, count: int) -> list[int]:
        """Known tokens at positions start .. start+count-1."""
        assert 0 <= start and start + count <= len(self), (start, count, len(self))
        inside = len(self.prompt_ids)
        head = list(self.prompt_ids[start : start + count])
        return head + self.output_ids[max(0, start - inside) : max(0, start + count - inside)]
