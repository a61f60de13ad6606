"""Engine: a model ready to answer. Ask (EngineConfig), plan (plan.py), run (run/runner.py): nothing is
allocated after start-up. One thread at a time drives it; whoever waits for a reply runs steps for all."""

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from xinfer.config import EngineConfig
from xinfer.errors import RequestError
from xinfer.kv.pages import PagePool
from xinfer.reply import Chunk, Completion, Reply
from xinfer.run.runner import Runner
from xinfer.sampling import SamplingParams
from xinfer.sched.request import Request, State
from xinfer.sched.scheduler import Scheduler
from xinfer.start import Model, start
from xinfer.text.stream import Detokenizer, StopMatcher

Prompt = str | Sequence[int]
Messages = Sequence[Mapping[str, object]]


class Engine:
    """`Engine(m="model.gguf")`, or any option of EngineConfig by keyword.

    m           a .gguf file, a folder with safetensors, or a Hugging Face id
    progress    called with (bytes done, bytes in all) while weights load
    Raises ConfigError, CheckpointError, UnsupportedError, OutOfMemoryError or DeviceError: one line that says
    what, the numbers and what to change. Use it as a context manager, or close() it.
    """

    def __init__(
        self,
        m: str | os.PathLike | None = None,
        *,
        progress: Callable[[int, int], None] | None = None,
        **options: object,
    ) -> None:
        if m is not None:
            options["m"] = os.fspath(m)
        self.config = EngineConfig.of(**options)
        self.model: Model = start(self.config, progress)
        plan = self.plan = self.model.plan
        self.tokenizer, self.chat_template = self.model.tokenizer, self.model.chat_template
        try:
            self.runner = Runner(
                self.model.device,
                self.model.spec,
                self.model.weights,
                self.model.tables,
                plan,
                self.config.graphs,
            )
            self.runner.warm_up()
        except BaseException:
            self.model.device.close()
            raise
        self.scheduler = Scheduler(
            plan.max_num_seqs, plan.prefill_chunk, PagePool(plan.num_pages), plan.max_model_len
        )
        self.replies: dict[object, Reply] = {}
        self.requests = 0
        self.closed = False
        self.times = {"prefill": 0.0, "decode": 0.0}
        self.counts = {"prefill_tokens": 0, "decode_tokens": 0, "prefill_steps": 0, "decode_steps": 0}

    # -- whole replies ---------------------------------------------------------------------------------------

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[Completion]:
        """Replies to one prompt or several (text, or lists of token ids), in order; they run together.

        `params`: for all prompts, or one for each. Text gets the model's bos token if it has one; ids are
        taken as they are. Raises RequestError before anything runs if one of them cannot be served.
        """
        replies = self._submit_all(_as_list(prompts), params)
        try:
            while not all(reply.finished for reply in replies):
                self.step()
        except BaseException:
            self._cancel_all(replies)
            raise
        return [self._complete(reply) for reply in replies]

    def chat(
        self, messages: Messages, params: SamplingParams | None = None, **template: object
    ) -> Completion:
        """The reply to a conversation [{"role": ..., "content": ...}], by the model's chat template;
        `template` are further variables of the template, such as tools or enable_thinking."""
        return self.generate([self.chat_ids(messages, **template)], params)[0]

    # -- replies as they are made ----------------------------------------------------------------------------

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> Iterator[Chunk]:
        """Chunks of the reply to one prompt. Closing the iterator cancels the request."""
        with contextlib.closing(self.stream_many([prompt], params)) as chunks:
            for _, chunk in chunks:
                yield chunk

    def stream_chat(
        self, messages: Messages, params: SamplingParams | None = None, **template: object
    ) -> Iterator[Chunk]:
        """Chunks of the reply to a conversation, see chat()."""
        return self.stream(self.chat_ids(messages, **template), params)

    def stream_many(
        self, prompts: Sequence[Prompt], params: SamplingParams | Sequence[SamplingParams] | None = None
    ) -> Iterator[tuple[int, Chunk]]:
        """(index of the prompt, chunk) for prompts that run together, as chunks are made."""
        replies = self._submit_all(list(prompts), params)
        try:
            open_replies = dict(enumerate(replies))
            while open_replies:
                if not any(reply.chunks for reply in open_replies.values()):
                    self.step()
                for index, reply in list(open_replies.items()):
                    while reply.chunks:
                        chunk = reply.chunks.popleft()
                        yield index, chunk
                        if chunk.finish_reason is not None:
                            del open_replies[index]
        finally:
            self._cancel_all(replies)

    # -- the loop --------------------------------------------------------------------------------------------

    def submit(self, prompt: Prompt, params: SamplingParams | None = None) -> Reply:
        """Queue a request; its chunks appear as step() is called. Raises RequestError."""
        assert not self.closed, "the engine was closed"
        params = params or SamplingParams()
        ids = self._ids(prompt)
        self._check(ids, params)
        seed = (
            params.seed
            if params.seed is not None
            else self.config.seed + 0x9E3779B97F4A7C15 * (self.requests + 1)
        )
        request = Request(self.requests, ids, params, self.model.stop_ids, seed % (1 << 64))
        self.scheduler.add(request)
        self.requests += 1
        reply = Reply(request, Detokenizer(self.tokenizer, ids), StopMatcher(params.stops))
        self.replies[request.id] = reply
        return reply

    def cancel(self, reply: Reply) -> None:
        """End a reply; nothing happens when it has ended."""
        if self.scheduler.cancel(reply.request.id):
            reply.cancel()
        self.replies.pop(reply.request.id, None)

    def step(self) -> bool:
        """Run one step for whoever is next and hand out its tokens; False when there was nothing to do."""
        step = self.scheduler.schedule()
        if step is None:
            return False
        begin = time.perf_counter()
        try:
            tokens = self.runner.run(step)
        except BaseException:
            self.scheduler.abandon()
            raise
        self.scheduler.commit(step, tokens)
        for request, token in tokens.items():
            reply = self.replies[request.id]
            if reply.push(token):
                self.scheduler.finish(request, "stop")
            if request.state is State.FINISHED:
                del self.replies[request.id]
        kind = "decode" if step.decode else "prefill"
        self.times[kind] += time.perf_counter() - begin
        self.counts[f"{kind}_tokens"] += step.num_tokens
        self.counts[f"{kind}_steps"] += 1
        return True

    # -- around it -------------------------------------------------------------------------------------------

    def chat_ids(self, messages: Messages, **template: object) -> list[int]:
        """Token ids of a conversation rendered by the chat template."""
        return self.tokenizer.encode_prompt(self.chat_template.render(messages, **template))

    def stats(self) -> dict[str, object]:
        """Tokens and seconds of prefill and decode since start, requests, preemptions, bytes of memory,
        device."""
        plan = self.plan
        return {
            **self.counts,
            "prefill_seconds": self.times["prefill"],
            "decode_seconds": self.times["decode"],
            "requests": self.requests,
            "unfinished": self.scheduler.unfinished,
            "preemptions": self.scheduler.preemptions,
            "kv_pages_free": self.scheduler.pool.available,
            "kv_pages": plan.num_pages,
            "weight_bytes": plan.weight_bytes,
            "kv_bytes": plan.kv_bytes,
            "device": self.model.device.name,
        }

    def close(self) -> None:
        """Give back the device. Unfinished replies end as cancelled."""
        if not self.closed:
            self._cancel_all(list(self.replies.values()))
            self.closed = True
            self.runner.close()
            self.model.device.close()

    def __enter__(self) -> "Engine":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # -- requests --------------------------------------------------------------------------------------------

    def _submit_all(self, prompts: list[Prompt], params) -> list[Reply]:
        each = params if isinstance(params, list | tuple) else [params] * len(prompts)
        if len(each) != len(prompts):
            raise RequestError(
                f"{len(prompts)} prompts and {len(each)} params: give one for each, or one for all"
            )
        replies = []
        try:
            for prompt, its_params in zip(prompts, each):
                replies.append(self.submit(prompt, its_params))
        except BaseException:
            self._cancel_all(replies)
            raise
        return replies

    def _cancel_all(self, replies: list[Reply]) -> None:
        for reply in replies:
            self.cancel(reply)

    def _ids(self, prompt: Prompt) -> list[int]:
        if isinstance(prompt, str):
            return self.tokenizer.encode(prompt)
        return [int(token) for token in prompt]

    def _check(self, ids: list[int], params: SamplingParams) -> None:
        vocab = self.model.spec.vocab
        named = (
            ("the prompt", ids),
            ("stop_token_ids", params.stop_token_ids),
            ("logit_bias", params.logit_bias),
        )
        for what, tokens in named:
            for token in tokens:
                if not 0 <= token < vocab:
                    raise RequestError(f"{what} has token id {token}, the model's are 0 to {vocab - 1}")

    def _complete(self, reply: Reply) -> Completion:
        text = "".join(chunk.text for chunk in reply.chunks)
        request = reply.request
        reason = reply.chunks[-1].finish_reason
        return Completion(list(request.prompt_ids), list(request.output_ids), text, reason)


def _as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt or several as a list; a list of integers is one prompt."""
    if isinstance(prompts, str):
        return [prompts]
    prompts = list(prompts)
    if not prompts:
        raise RequestError("no prompt given")
    return [prompts] if all(isinstance(p, int) for p in prompts) else prompts
