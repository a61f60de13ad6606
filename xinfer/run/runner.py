"""Runner: executes the steps that the scheduler plans. All device memory a step touches is made here,
once."""

from collections.abc import Iterator, Mapping

from xinfer.decoder import Decoder
from xinfer.device import Device
from xinfer.device.arena import Arena
from xinfer.formats.weight import Weight
from xinfer.kv.pages import pages_for
from xinfer.kv.pool import KVPool
from xinfer.layers import activations
from xinfer.ops import make_ops
from xinfer.parallel import Solo
from xinfer.plan import Plan
from xinfer.run.graphs import DecodeGraphs
from xinfer.run.inputs import StepInputs
from xinfer.run.sample import SamplerState
from xinfer.sched.batch import Step
from xinfer.sched.request import Request
from xinfer.spec import ModelSpec
from xinfer.tensor import DType, Tensor


class Runner:
    """`run(step)` gives the tokens of the spans that sample. Weights stay with the caller."""

    def __init__(
        self, device: Device, spec: ModelSpec, weights: Mapping, tables: Mapping, plan: Plan, graphs: bool
    ) -> None:
        self.device, self.plan = device, plan
        self.ops = make_ops(device, plan.act)
        self.pool = KVPool(device, spec, plan.num_pages, plan.act)
        self.arena = planned_arena(spec, plan.act, plan.max_tokens, plan.max_num_seqs)
        self.arena.commit(device)
        self.inputs = StepInputs(device, plan.max_tokens, plan.max_num_seqs, pages_for(plan.max_model_len))
        self.sampler = SamplerState(device, plan.max_num_seqs, spec.vocab)
        self.ops.reserve(spec, plan.max_num_seqs, plan.num_pages, list(matrices(weights)))
        self.decoder = Decoder(spec, weights, self.pool.layers, tables, self.ops, plan.act, Solo())
        self.graphs = None
        if graphs and device.supports_graphs:
            self.graphs = DecodeGraphs(device, plan.max_num_seqs, self._enqueue_decode)

    def warm_up(self) -> None:
        """Load every kernel of decode by one inert step, then capture its graphs."""
        nothing = Step((), decode=True)
        for penalized in (False, True):
            self.inputs.fill(nothing, pad_to=1)
            self._enqueue_decode(1, penalized)
        self.device.synchronize()
        if self.graphs:
            for size in self.graphs.sizes:
                self.inputs.fill(nothing, pad_to=size)
                self._enqueue_decode(size, False)
                self.device.synchronize()
                self.graphs.capture(size, False)

    def run(self, step: Step) -> dict[Request, int]:
        """One pass of the model; the token chosen for each request whose span samples."""
        for request in step.admitted:
            self.sampler.admit(request)
        sampling = [span.request for span in step.spans if span.samples]
        penalized = any(request.params.penalized for request in sampling)
        if step.decode and self.graphs:
            size = self.graphs.size(len(step.spans))
            self.inputs.fill(step, pad_to=size)
            self.graphs.replay(size, penalized)
        else:
            self.inputs.fill(step)
            self._enqueue(step.num_tokens, len(step.spans), len(sampling), penalized, False)
        if not sampling:
            return {}
        return dict(zip(sampling, self.sampler.read(len(sampling))))

    def logits(self, step: Step) -> Tensor:
        """Run a step and leave its logits f32 [N,V] on the device, unpenalized; for tests and tools."""
        self.inputs.fill(step)
        n = sum(span.samples for span in step.spans)
        self.inputs.upload(len(step.spans), False)
        batch = self.inputs.batch(step.num_tokens, len(step.spans), n)
        return self.decoder.forward(self.arena, batch, self.sampler.last)

    def _enqueue_decode(self, size: int, penalized: bool) -> None:
        """Waited for by whoever calls it: a capture cannot record the event that the next fill waits for."""
        self._enqueue(size, size, size, penalized, True)

    def _enqueue(self, tokens: int, seqs: int, logits: int, penalized: bool, capturing: bool) -> None:
        """The whole step on the compute stream: inputs up, model, sampler, tokens down. Nothing waits."""
        inputs = self.inputs
        inputs.upload(seqs, capturing)
        out = self.decoder.forward(self.arena, inputs.batch(tokens, seqs, logits), self.sampler.last)
        if logits:
            self.sampler.choose(self.ops, out, inputs.sampling(logits), penalized)

    def close(self) -> None:
        if self.graphs:
            self.graphs.close()
        for part in (self.inputs, self.sampler, self.pool, self.ops):
            part.close()
        self.arena.close(self.device)


def matrices(weights: Mapping) -> Iterator[Weight]:
    """Every Weight among named weights, parts of tuples one by one."""
    for entry in weights.values():
        yield from (w for w in (entry if isinstance(entry, tuple) else (entry,)) if isinstance(w, Weight))


def planned_arena(spec: ModelSpec, act: DType, max_tokens: int, max_logits: int) -> Arena:
    """An arena sized for the largest step."""
    arena = Arena()
    activations.take(arena, spec, act, max_tokens, max_logits)
    return arena
