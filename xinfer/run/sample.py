"""What the sampler remembers of each request, on the device: its last token, what it has seen, its biases."""

import numpy as np

from xinfer.device import Device
from xinfer.ops import Ops
from xinfer.sampling import MAX_BIASES
from xinfer.sched.request import Request
from xinfer.tensor import DType, Tensor

_IN_PROMPT = 0x8000  # bit 15 of a count
_MOST = 0x7FFF
_BIASES = -(-MAX_BIASES // 4) * 4


class SamplerState:
    """Rows of per-request state for S requests at once.

    last     i32 [S]     token sampled last
    counts   u16 [S,V]   low 15 bits: times in the reply; bit 15: in the prompt. Kept only for penalized
    requests
    biases   i32 [S,NB] token ids (-1: none) and f32 [S,NB] what is added to their logits
    tokens   i32 [S]     where a step's choices come out; `chosen` is its pinned host copy
    """

    def __init__(self, device: Device, rows: int, vocab: int) -> None:
        self.device, self.vocab, self.rows = device, vocab, rows
        sizes = {
            "last": 4 * rows,
            "counts": 2 * rows * vocab,
            "biases": 8 * rows * _BIASES,
            "tokens": 4 * rows,
        }
        self.parts = {name: device.alloc(nbytes, f"sampler {name}") for name, nbytes in sizes.items()}
        self.last = self.parts["last"].view((rows,), DType.I32)
        self.counts = self.parts["counts"].view((rows, vocab), DType.U16)
        self.tokens = self.parts["tokens"].view((rows,), DType.I32)
        half = 4 * rows * _BIASES
        self.bias_ids = self.parts["biases"].rows(0, half).view((rows, _BIASES), DType.I32)
        self.bias_values = self.parts["biases"].rows(half, 2 * half).view((rows, _BIASES), DType.F32)
        self.pinned = device.host_alloc(4 * rows, what="sampled tokens")
        self.chosen = self.pinned.view((rows,), DType.I32)
        for part in self.parts.values():
            device.zero(part)
        self.biased: set[int] = set(range(rows))  # rows whose biases are not known to be empty

    def admit(self, request: Request) -> None:
        """Set a request's row from what it is known to have seen (after preemption, its own reply too)."""
        row, params = request.row, request.params
        if params.logit_bias or row in self.biased:
            ids, values = np.full(_BIASES, -1, np.int32), np.zeros(_BIASES, np.float32)
            ids[: len(params.logit_bias)] = list(params.logit_bias)
            values[: len(params.logit_bias)] = list(params.logit_bias.values())
            self.device.upload(self.bias_ids.rows(row, row + 1), ids)
            self.device.upload(self.bias_values.rows(row, row + 1), values)
            (self.biased.add if params.logit_bias else self.biased.discard)(row)
        if params.penalized:
            self.device.upload(self.counts.rows(row, row + 1), seen(request, self.vocab))

    def choose(self, ops: Ops, logits: Tensor, fields: dict[str, Tensor], penalized: bool) -> None:
        """logits f32 [N,V] -> tokens[:N], last and counts; N entries of StepInputs.sampling."""
        f = fields
        if penalized:
            ops.penalize(
                logits, self.counts, f["sample_rows"], f["repetition"], f["frequency"], f["presence"],
                self.bias_ids, self.bias_values,
            )  # fmt: skip
        n = logits.shape[0]
        ops.sample(
            self.tokens.rows(0, n), self.last, self.counts, logits, f["sample_rows"], f["temperature"],
            f["top_p"], f["min_p"], f["top_k"], f["seeds"], f["steps"],
        )  # fmt: skip
        self.device.copy(self.chosen.rows(0, n), self.tokens.rows(0, n))

    def read(self, n: int) -> list[int]:
        """The step's tokens: the one place where the host waits for the device."""
        self.device.synchronize(self.device.stream)
        return self.chosen.rows(0, n).numpy().tolist()

    def close(self) -> None:
        for part in (*self.parts.values(), self.pinned):
            self.device.free(part)


def seen(request: Request, vocab: int) -> np.ndarray:
    """The u16 [V] counts of a request's known tokens."""
    counts = np.minimum(np.bincount(request.output_ids, minlength=vocab), _MOST).astype(np.uint16)
    counts[np.unique(np.asarray(request.prompt_ids))] |= np.uint16(_IN_PROMPT)
    return counts
