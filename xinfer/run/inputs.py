"""The integers of a step: written by the host into one pinned block, mirrored by one device block in one
copy.

Every field has a fixed place, so captured graphs read the same addresses at each step. The page table comes
last: a step copies the fields before it and only the rows it uses.
"""

import numpy as np

from xinfer.batch import Batch
from xinfer.device import Device
from xinfer.kv.pages import PAGE
from xinfer.sched.batch import Span, Step
from xinfer.tensor import DType, Tensor

_TOKEN_FIELDS = ("tokens", "positions", "kv_slots", "token_rows")
_FLOATS = ("temperature", "top_p", "min_p", "repetition", "frequency", "presence")
_INTS = ("kv_len", "logit_rows", "sample_rows", "top_k", "steps")
_INERT = {
    "temperature": 0,
    "top_p": 1,
    "min_p": 0,
    "repetition": 1,
    "frequency": 0,
    "presence": 0,
    "top_k": 0,
}


class StepInputs:
    """`host[name]`: numpy views of the pinned block; `device_fields[name]`: tensors of the mirror, largest
    shapes.

    Sampling fields (temperature ... steps, seeds) have an entry for each logit row, in order; `sample_rows`
    is the request's row in per-request state, -1 for a padded one.
    """

    def __init__(self, device: Device, max_tokens: int, max_seqs: int, pages_per_seq: int) -> None:
        self.device = device
        fields = [(name, DType.I32, (max_tokens,)) for name in _TOKEN_FIELDS]
        fields += [("seeds", DType.U64, (max_seqs,)), ("q_start", DType.I32, (max_seqs + 1,))]
        fields += [(name, DType.F32, (max_seqs,)) for name in _FLOATS]
        fields += [(name, DType.I32, (max_seqs,)) for name in _INTS]
        fields += [("page_table", DType.I32, (max_seqs, pages_per_seq))]
        starts, at = {}, 0
        for name, dtype, shape in fields:
            starts[name] = at
            at += -(-int(np.prod(shape)) * dtype.itemsize // 16) * 16
        self.table_start, self.table_row = starts["page_table"], pages_per_seq * 4
        self.pinned = device.host_alloc(at, what="step inputs")
        self.memory = device.alloc(at, "step inputs")
        self.host: dict[str, np.ndarray] = {}
        self.device_fields: dict[str, Tensor] = {}
        for name, dtype, shape in fields:
            self.host[name] = Tensor(self.pinned.ptr + starts[name], shape, dtype).numpy()
            place = self.memory.ptr + starts[name]
            self.device_fields[name] = Tensor(place, shape, dtype, 0, self.memory.owner)
        self.copied = device.event()

    def fill(self, step: Step, pad_to: int = 0) -> None:
        """Write a step; `pad_to`: make it look like a decode step of that many sequences, the rest inert."""
        self.copied.synchronize()  # the last copy out of the pinned block may still be under way
        host, at, logit = self.host, 0, 0
        for b, span in enumerate(step.spans):
            self._fill_span(b, at, span)
            at += span.count
            if span.samples:
                self._fill_sampling(logit, at - 1, span)
                logit += 1
        n = len(step.spans)
        if pad_to > n:
            assert at == n == logit, "only decode steps are padded"
            host["tokens"][n:pad_to] = -2
            host["kv_slots"][n:pad_to] = -1
            for name in ("positions", "token_rows", "kv_len", "seeds", "steps"):
                host[name][n:pad_to] = 0
            host["q_start"][n : pad_to + 1] = np.arange(n, pad_to + 1)
            host["logit_rows"][n:pad_to] = host["sample_rows"][n:pad_to] = -1
            for name, value in _INERT.items():
                host[name][n:pad_to] = value

    def _fill_span(self, b: int, at: int, span: Span) -> None:
        host, request, end = self.host, span.request, at + span.count
        host["q_start"][b], host["q_start"][b + 1] = at, end
        host["kv_len"][b] = span.end
        pages = request.pages
        host["page_table"][b, : len(pages)] = pages
        if span.count == 1:
            position = span.start
            host["tokens"][at] = request.token(position)
            host["positions"][at] = position
            host["kv_slots"][at] = pages[position // PAGE] * PAGE + position % PAGE
        else:
            positions = np.arange(span.start, span.end, dtype=np.int32)
            host["tokens"][at:end] = span.token_ids
            host["positions"][at:end] = positions
            host["kv_slots"][at:end] = host["page_table"][b, positions // PAGE] * PAGE + positions % PAGE
        host["token_rows"][at:end] = request.row

    def _fill_sampling(self, i: int, token: int, span: Span) -> None:
        host, request, params = self.host, span.request, span.request.params
        host["logit_rows"][i], host["sample_rows"][i] = token, request.row
        host["temperature"][i], host["top_p"][i] = params.temperature, params.top_p
        host["min_p"][i], host["top_k"][i] = params.min_p, params.top_k
        host["repetition"][i] = params.repetition_penalty
        host["frequency"][i], host["presence"][i] = params.frequency_penalty, params.presence_penalty
        host["seeds"][i], host["steps"][i] = request.seed, len(request.output_ids)

    def upload(self, num_seqs: int, capturing: bool) -> None:
        """One copy of everything that a step of `num_seqs` sequences reads, in stream order."""
        nbytes = self.table_start + num_seqs * self.table_row
        self.device.copy(self.memory.rows(0, nbytes), self.pinned.rows(0, nbytes))
        if not capturing:
            self.copied.record()

    def batch(self, tokens: int, seqs: int, logits: int) -> Batch:
        """The mirror as a step of these sizes."""
        d = self.device_fields
        return Batch(
            *(d[name].rows(0, tokens) for name in _TOKEN_FIELDS),
            q_start=d["q_start"].rows(0, seqs + 1),
            kv_len=d["kv_len"].rows(0, seqs),
            page_table=d["page_table"].rows(0, seqs),
            logit_rows=d["logit_rows"].rows(0, logits),
        )

    def sampling(self, logits: int) -> dict[str, Tensor]:
        """Sampling fields of the first `logits` entries, by name."""
        names = (*_FLOATS, "top_k", "steps", "seeds", "sample_rows")
        return {name: self.device_fields[name].rows(0, logits) for name in names}

    def close(self) -> None:
        self.copied.close()
        self.device.free(self.pinned)
        self.device.free(self.memory)
