"""The scheduler drives a fake model whose next token is a hash of the whole prefix, read back from paged
memory.

What it is checked against: `reply()`, which computes one request alone with neither pages nor steps. A page
that is shared, freed too early or filled from a wrong position gives another hash, and so other tokens.
"""

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from xinfer.errors import RequestError
from xinfer.kv.pages import PAGE, PagePool, pages_for
from xinfer.sampling import SamplingParams
from xinfer.sched.request import Request, State
from xinfer.sched.scheduler import Scheduler

VOCAB = 50
EOS = 7


def absorb(state: int, token: int) -> int:
    return (state * 6364136223846793005 + token * 1442695040888963407 + 1) % (1 << 61)


def choose(state: int) -> int:
    return (state >> 20) % VOCAB


def reply(prompt: list[int], params: SamplingParams, limit: int) -> tuple[list[int], str]:
    """Tokens and finish reason of a request alone in a cache of `limit` positions."""
    state, tokens = 0, []
    for token in prompt:
        state = absorb(state, token)
    while True:
        tokens.append(choose(state))
        if tokens[-1] == EOS and not params.ignore_eos and len(tokens) >= params.min_tokens:
            return tokens, "stop"
        if len(tokens) == params.max_tokens or len(prompt) + len(tokens) >= limit:
            return tokens, "length"
        state = absorb(state, tokens[-1])


class FakeModel:
    """Runs steps: the state of a position is in the slot that the request's pages give it."""

    def __init__(self) -> None:
        self.cache: dict[tuple[int, int], int] = {}

    def run(self, step) -> dict[Request, int]:
        tokens = {}
        for span in step.spans:
            pages = span.request.pages
            for position, token in enumerate(span.token_ids, start=span.start):
                before = position - 1
                state = 0 if position == 0 else self.cache[pages[before // PAGE], before % PAGE]
                self.cache[pages[position // PAGE], position % PAGE] = state = absorb(state, token)
            if span.samples:
                tokens[span.request] = choose(state)
        return tokens


def make(num_pages: int = 8, *, rows: int = 4, chunk: int = 128, limit: int = 10_000) -> Scheduler:
    return Scheduler(rows, chunk, PagePool(num_pages), limit)


def request(name: object, length: int, **params: object) -> Request:
    prompt = [(length * 31 + i * i) % VOCAB for i in range(length)]
    return Request(name, prompt, SamplingParams(**{"ignore_eos": True} | params), eos_ids=(EOS,))


def drain(scheduler: Scheduler, model: FakeModel, steps: int = 100_000) -> list:
    done = []
    while (step := scheduler.schedule()) is not None:
        done.append(step)
        scheduler.commit(step, model.run(step))
        scheduler.check()
        assert len(done) < steps, "does not end"
    return done


lengths = st.one_of(
    st.integers(1, 8), st.sampled_from([63, 64, 65, 127, 128, 129, 191, 192, 193]), st.integers(1, 400)
)


class Machine(RuleBasedStateMachine):
    """Any order of arrivals, steps, cancellations, stop strings and failed steps."""

    @initialize(pages=st.integers(1, 9), rows=st.integers(1, 4), chunk=st.sampled_from([64, 128, 256]))
    def start(self, pages: int, rows: int, chunk: int) -> None:
        self.scheduler = make(pages, rows=rows, chunk=chunk, limit=500)
        self.limit = min(500, pages * PAGE)
        self.model = FakeModel()
        self.requests: list[Request] = []
        self.first_tokens: list[int] = []
        self.last_was_prefill = False

    @rule(length=lengths, max_tokens=st.integers(1, 150), ignore_eos=st.booleans())
    def add(self, length: int, max_tokens: int, ignore_eos: bool) -> None:
        new = request(len(self.requests), length, max_tokens=max_tokens, ignore_eos=ignore_eos)
        if length + 1 > self.limit:
            with pytest.raises(RequestError):
                self.scheduler.add(new)
        else:
            self.scheduler.add(new)
            self.requests.append(new)

    @rule(count=st.integers(1, 40), cancel=st.one_of(st.none(), st.integers(0, 50)))
    def steps(self, count: int, cancel: int | None) -> None:
        """Several steps; `cancel` ends a request while the last of them is in flight."""
        for left in reversed(range(count)):
            self.one_step(cancel if left == 0 else None)

    def one_step(self, cancel: int | None = None) -> None:
        scheduler = self.scheduler
        speaking = [r for r in scheduler.running if not r.prefilling]
        step = scheduler.schedule()
        scheduler.check()
        if step is None:
            assert scheduler.unfinished == 0
            return
        self.check_step(step, speaking)
        tokens = self.model.run(step)
        victim = self.requests[cancel % len(self.requests)] if cancel is not None else None
        if victim is not None:
            scheduler.cancel(victim.id)
            scheduler.check()
        for finished in scheduler.commit(step, tokens):
            assert finished.state is State.FINISHED
        for span in step.spans:
            if span.samples and len(span.request.output_ids) == 1 and span.request is not victim:
                self.first_tokens.append(span.request.arrival)

    def check_step(self, step, speaking: list[Request]) -> None:
        chunk = self.scheduler.prefill_chunk
        assert step.spans and (step.decode or step.num_tokens <= chunk)
        for span in step.spans:
            assert span.samples == (span.end == len(span.request)) and span.count >= 1
            assert len(span.request.pages) >= pages_for(span.end)
            if not step.decode:
                assert span.start % chunk == 0
                assert span.end == len(span.request) or span.end == span.start + chunk
        still_speaking = [r for r in speaking if r.state is State.RUNNING]
        if self.last_was_prefill and still_speaking:
            assert step.decode, "a reply waited for two prefill steps"
        if step.decode:
            assert {span.request for span in step.spans} == set(still_speaking)
        for admitted in step.admitted:
            assert [span.start for span in step.spans if span.request is admitted] == [0]
        self.last_was_prefill = not step.decode

    @precondition(lambda self: self.requests)
    @rule(which=st.integers(0, 50), reason=st.sampled_from(["cancelled", "stop"]))
    def end(self, which: int, reason: str) -> None:
        victim = self.requests[which % len(self.requests)]
        known = victim.state is not State.FINISHED
        if reason == "stop" and known:
            self.scheduler.finish(victim, "stop")
            victim.finish_reason = "text"  # so that the end is not taken for the model's own
        else:
            assert self.scheduler.cancel(victim.id) is known

    @rule()
    def fail(self) -> None:
        """A step that was interrupted, half of its writes done."""
        step = self.scheduler.schedule()
        if step is not None:
            self.model.run(step)
            self.scheduler.abandon()

    @invariant()
    def consistent(self) -> None:
        if hasattr(self, "scheduler"):
            self.scheduler.check()
            assert self.first_tokens == sorted(self.first_tokens), "a later request spoke first"

    def teardown(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        drain(self.scheduler, self.model)
        assert self.scheduler.unfinished == 0
        assert self.scheduler.pool.available == self.scheduler.pool.num_pages
        for done in self.requests:
            expected, reason = reply(list(done.prompt_ids), done.params, self.limit)
            assert done.state is State.FINISHED and done.row is None and not done.pages
            if done.finish_reason in ("cancelled", "text"):
                assert done.output_ids == expected[: len(done.output_ids)]
            else:
                assert (done.output_ids, done.finish_reason) == (expected, reason)


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=80, stateful_step_count=30, deadline=None)


def test_chunks_of_one_prompt() -> None:
    scheduler = make(chunk=128)
    scheduler.add(request("a", 300, max_tokens=2))
    steps = drain(scheduler, FakeModel())
    spans = [(s.start, s.count, s.samples, step.decode) for step in steps for s in step.spans]
    assert spans == [
        (0, 128, False, False),
        (128, 128, False, False),
        (256, 44, True, False),
        (300, 1, True, True),
    ]


def test_short_prompts_share_a_step_and_a_chunk_is_never_cut() -> None:
    scheduler = make(chunk=128)
    for name, length in [("a", 50), ("b", 60), ("c", 30), ("d", 5)]:
        scheduler.add(request(name, length, max_tokens=1))
    steps = drain(scheduler, FakeModel())
    assert [[s.request.id for s in step.spans] for step in steps] == [["a", "b"], ["c", "d"]]


def test_prefill_and_decode_take_turns() -> None:
    scheduler, model = make(num_pages=20, chunk=64), FakeModel()
    scheduler.add(request("talks", 10, max_tokens=20))
    step = scheduler.schedule()
    scheduler.commit(step, model.run(step))
    scheduler.add(request("long", 300, max_tokens=1))
    steps = drain(scheduler, model)
    assert [step.decode for step in steps[:11]] == [True, False] * 5 + [True]


def test_the_youngest_is_preempted_and_says_the_same() -> None:
    scheduler, model = make(num_pages=4, chunk=64), FakeModel()
    requests = [request(i, 60, max_tokens=120) for i in range(2)]
    for one in requests:
        scheduler.add(one)
    drain(scheduler, model)
    assert [one.preemptions > 0 for one in requests] == [False, True] and scheduler.preemptions >= 1
    for one in requests:
        assert (one.output_ids, one.finish_reason) == reply(list(one.prompt_ids), one.params, 256)


def test_ends() -> None:
    scheduler, model = make(num_pages=2, limit=1000), FakeModel()
    full = request("fills the cache", 100, max_tokens=None)
    scheduler.add(full)
    drain(scheduler, model)
    assert (len(full), full.finish_reason) == (128, "length")
    free = [request(i, 3 + i, max_tokens=None, ignore_eos=False) for i in range(4)]
    for one in free:
        scheduler.add(one)
    drain(scheduler, model)
    assert all(one.output_ids[-1] == EOS for one in free if one.finish_reason == "stop")
    assert any(one.finish_reason == "stop" for one in free)


def test_stop_ids_and_min_tokens() -> None:
    expected, _ = reply(
        list(request("x", 5).prompt_ids), SamplingParams(ignore_eos=True, max_tokens=20), 1000
    )
    stop = expected[2]
    first = expected.index(stop)
    for minimum in (0, first + 2):
        scheduler = make()
        one = request("x", 5, max_tokens=20, stop_token_ids=[stop], min_tokens=minimum)
        scheduler.add(one)
        drain(scheduler, FakeModel())
        ends = [i for i, token in enumerate(expected) if token == stop and i + 1 >= minimum]
        assert len(one.output_ids) == (ends[0] + 1 if ends else 20)


def test_rejections_give_numbers_and_a_remedy() -> None:
    scheduler = make(num_pages=2, limit=300)
    with pytest.raises(RequestError, match="the prompt is empty"):
        scheduler.add(request("a", 0))
    with pytest.raises(RequestError, match=r"300 tokens and max_model_len is 300.*raise max_model_len"):
        scheduler.add(request("a", 300))
    with pytest.raises(RequestError, match=r"128 tokens and the KV cache holds 128.*kv_memory_fraction"):
        scheduler.add(request("a", 128))
    scheduler.add(request("a", 127))
    with pytest.raises(RequestError, match="request id 'a' is in use"):
        scheduler.add(request("a", 5))


def test_rows_limit_what_runs() -> None:
    scheduler, model = make(rows=2, num_pages=50), FakeModel()
    for i in range(5):
        scheduler.add(request(i, 4, max_tokens=3))
    widest = max(len(step.spans) for step in drain(scheduler, model))
    assert widest == 2


def test_tokens_across_prompt_and_reply() -> None:
    one = Request("a", (1, 2, 3), output_ids=[4, 5])
    assert one.tokens(0, 5) == [1, 2, 3, 4, 5] and one.tokens(2, 2) == [3, 4] and one.tokens(4, 1) == [5]
    assert one.tokens(1, 1) == [2] and one.tokens(3, 0) == []


def test_misuse_is_our_bug() -> None:
    scheduler, model = make(), FakeModel()
    scheduler.add(request("a", 3))
    step = scheduler.schedule()
    with pytest.raises(AssertionError):
        scheduler.schedule()
    with pytest.raises(AssertionError, match="no token for request"):
        scheduler.commit(step, {})
    with pytest.raises(AssertionError):
        scheduler.commit(step, model.run(step))
