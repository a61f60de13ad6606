"""Scheduler: which tokens run next, who owns which page, who has to wait. Pure Python, no device, no clock.

First come, first served. Prefill and decode steps take turns while there is work for both, so that a long
prompt slows running replies but never stops them. When a reply needs a page and none is free, the youngest
running request gives up its own and is computed again later from its prompt and what it had already said.
"""

from collections import deque
from collections.abc import Mapping

from xinfer.errors import RequestError
from xinfer.kv.pages import PAGE, PagePool, pages_for
from xinfer.sched.batch import Span, Step
from xinfer.sched.request import Request, State


class Scheduler:
    """add() requests; then schedule() a step, run it and commit() its tokens while schedule() gives one.

    Every request admitted is older than every request waiting, and `running` is in order of arrival: FIFO
    admission and preemption of the youngest keep it so.
    """

    def __init__(self, max_num_seqs: int, prefill_chunk: int, pool: PagePool, max_model_len: int) -> None:
        assert max_num_seqs > 0 and prefill_chunk > 0 and max_model_len > 1
        self.prefill_chunk = prefill_chunk
        self.pool = pool
        self.max_model_len = max_model_len
        self.max_len = min(max_model_len, pool.num_pages * PAGE)  # a request alone must be able to finish
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.preemptions = 0
        self._requests: dict[object, Request] = {}
        self._rows = list(range(max_num_seqs - 1, -1, -1))
        self._num_rows = max_num_seqs
        self._arrivals = 0
        self._in_flight: Step | None = None
        self._prefilled_last = False

    # -- what callers do -------------------------------------------------------------------------------------

    def add(self, request: Request) -> None:
        """Queue a request. Raises RequestError when it could never run."""
        length = len(request.prompt_ids)
        if request.id in self._requests:
            raise RequestError(f"request id {request.id!r} is in use")
        if length == 0:
            raise RequestError("the prompt is empty: it must have at least one token")
        if length + 1 > self.max_model_len:
            raise RequestError(
                f"the prompt has {length} tokens and max_model_len is {self.max_model_len}, one of them for "
                "the reply: shorten the prompt or raise max_model_len"
            )
        if length + 1 > self.max_len:
            raise RequestError(
                f"the prompt has {length} tokens and the KV cache holds {self.max_len}, one of them for the "
                "reply: shorten the prompt or raise kv_tokens or kv_memory_fraction"
            )
        assert request.state is State.WAITING and not request.output_ids and not request.pages
        request.arrival, self._arrivals = self._arrivals, self._arrivals + 1
        self._requests[request.id] = request
        self.waiting.append(request)

    def cancel(self, request_id: object) -> bool:
        """End a request now, also while a step with it is in flight; False when it is not (or no longer)
        known."""
        request = self._requests.get(request_id)
        if request is None:
            return False
        self.finish(request, "cancelled")
        return True

    def finish(self, request: Request, reason: str) -> None:
        """End an unfinished request and free what it holds: also for a stop string, which only the text
        shows."""
        assert request.state is not State.FINISHED
        if request.state is State.RUNNING:
            self._release(request)
            self.running.remove(request)
        else:
            self.waiting.remove(request)
        request.state, request.finish_reason = State.FINISHED, reason
        del self._requests[request.id]

    @property
    def unfinished(self) -> int:
        return len(self._requests)

    def schedule(self) -> Step | None:
        """The next step, or None when there is nothing to do. It must be committed before the next call."""
        assert self._in_flight is None, "the last step was not committed"
        step = None
        if self._prefilled_last:
            step = self._decode()
        step = step or self._prefill() or self._decode()
        self._prefilled_last = step is not None and not step.decode
        self._in_flight = step
        return step

    def commit(self, step: Step, tokens: Mapping[Request, int | None]) -> list[Request]:
        """Take the tokens that `step` chose, one for each span that samples; returns the requests that this
        finished. Requests cancelled since schedule() are passed over."""
        assert step is self._in_flight, "commit() wants the step that schedule() gave last"
        self._in_flight = None
        finished = []
        for span in step.spans:
            request = span.request
            if request.state is State.FINISHED:
                continue
            request.num_computed = span.end
            if not span.samples:
                continue
            token = tokens.get(request)
            assert token is not None, f"no token for request {request.id!r}"
            request.output_ids.append(token)
            reason = self._reason_to_finish(request)
            if reason:
                self.finish(request, reason)
                finished.append(request)
        return finished

    def abandon(self) -> None:
        """The step in flight failed or was interrupted: what it left on the device is unknown, so every
        running request goes back to waiting and is computed again."""
        self._in_flight = None
        while self.running:
            self._preempt(self.running[-1])

    # -- the two kinds of step -------------------------------------------------------------------------------

    def _prefill(self) -> Step | None:
        """Whole chunks in order of arrival, of running requests and then of newly admitted ones, until one
        does not fit in the step. A chunk is never cut: its borders are a function of its own request
        alone."""
        spans: list[Span] = []
        admitted: list[Request] = []
        budget = self.prefill_chunk
        for request in [r for r in self.running if r.prefilling]:
            span = self._chunk(request)
            if span.count > budget:
                return Step(tuple(spans), False)
            spans.append(span)
            budget -= span.count
        while self.waiting and min(self.prefill_chunk, len(self.waiting[0])) <= budget and self._can_admit():
            request = self._admit()
            admitted.append(request)
            span = self._chunk(request)
            spans.append(span)
            budget -= span.count
        return Step(tuple(spans), False, tuple(admitted)) if spans else None

    def _decode(self) -> Step | None:
        """One more token for every reply, oldest first; whoever cannot get its page takes it from the
        youngest."""
        spans = []
        for request in [r for r in self.running if not r.prefilling]:
            if request.state is not State.RUNNING:  # preempted a moment ago, for an older one
                continue
            start, end = request.num_computed, len(request)
            if self._grow(request, end):
                spans.append(Span(request, start, end - start, samples=True))
        return Step(tuple(spans), True) if spans else None

    def _chunk(self, request: Request) -> Span:
        start = request.num_computed
        border = (start // self.prefill_chunk + 1) * self.prefill_chunk
        end = min(border, request.prefill_end)
        return Span(request, start, end - start, samples=end == request.prefill_end)

    # -- rows and pages --------------------------------------------------------------------------------------

    def _can_admit(self) -> bool:
        """A row, pages for all known tokens and the next, and one spare page for each running request:
        without the spare ones the newcomer would be preempted at the next page border."""
        need = pages_for(len(self.waiting[0]) + 1)
        return not self.running or (bool(self._rows) and need + len(self.running) <= self.pool.available)

    def _admit(self) -> Request:
        request = self.waiting.popleft()
        request.prefill_end = len(request)
        request.pages = self.pool.allocate(pages_for(request.prefill_end + 1))
        request.row = self._rows.pop()
        request.state = State.RUNNING
        self.running.append(request)
        return request

    def _grow(self, request: Request, length: int) -> bool:
        """Pages for `length` positions, preempting from the youngest on; False when that was the request
        itself."""
        missing = pages_for(length) - len(request.pages)
        while missing > self.pool.available:
            victim = self.running[-1]
            self._preempt(victim)
            if victim is request:
                return False
        if missing > 0:
            request.pages += self.pool.allocate(missing)
        return True

    def _preempt(self, request: Request) -> None:
        assert request is self.running[-1]
        self._release(request)
        self.running.pop()
        request.state = State.WAITING
        request.num_computed = request.prefill_end = 0
        request.preemptions += 1
        self.preemptions += 1
        self.waiting.appendleft(request)

    def _release(self, request: Request) -> None:
        self.pool.free(request.pages)
        request.pages = []
        self._rows.append(request.row)
        request.row = None

    def _reason_to_finish(self, request: Request) -> str | None:
        produced, params = len(request.output_ids), request.params
        if request.output_ids[-1] in request.stop_ids and produced >= params.min_tokens:
            return "stop"
        if produced == params.max_tokens or len(request) >= self.max_len:
            return "length"
        return None

    # -- invariants ------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Everything that must hold between calls; cheap enough for tests to call after each."""
        running, waiting = self.running, list(self.waiting)
        self.pool.check([page for request in running for page in request.pages])
        rows = [request.row for request in running]
        assert sorted(rows + self._rows) == list(range(self._num_rows)), "a row is lost or shared"
        arrivals = [request.arrival for request in running + waiting]
        assert arrivals == sorted(arrivals), "out of order"
        assert {id(r) for r in running + waiting} == {id(r) for r in self._requests.values()}
        for request in running:
            assert request.state is State.RUNNING and request.finish_reason is None
            assert request.num_computed < len(request) <= self.max_len
            assert request.prefill_end <= len(request)
            assert len(request.pages) >= pages_for(request.num_computed)
        for request in waiting:
            assert request.state is State.WAITING and request.row is None
            assert not request.pages and request.num_computed == 0
