"""penalize: what a request's logits lose for tokens it has seen, and the biases its user asked for.

    x = x / repetition if x > 0 else x * repetition      where the token is in the prompt or was generated
    x = x - (frequency * times + presence * [times > 0]) where it was generated `times` times
    x = x + bias                                         for the listed ids, each listed once
counts[row, id] u16: the low 15 bits are `times`, bit 15 says the token is in the prompt. Rows with rows[b] <
0 stay. Every step is rounded as written. Bytes moved: counts once; logits only where something changes.
"""

from numba import cuda, float32, int32, int64

from .build import KernelSpec
from .launch import Library
from .ptx import (
    add_rn,
    barrier,
    device,
    div_rn,
    grid_wait,
    launch_dependents,
    ld_f32,
    ld_i32,
    ld_u16,
    mul_rn,
    st_f32,
    sub_rn,
)

THREADS = 256
NUMBERS = 8  # counts in flight a thread
SPAN = THREADS * NUMBERS  # logits of a block


@device
def _penalized(x, count, repetition, frequency, presence):
    """A logit whose count is not zero."""
    if x > float32(0):
        x = div_rn(x, repetition)
    else:
        x = mul_rn(x, repetition)
    times = int32(count & int32(0x7FFF))
    if times > 0:
        x = sub_rn(x, add_rn(mul_rn(frequency, float32(times)), presence))
    return x


def penalize_kernel():
    """Arguments: logits, counts, rows, repetition, frequency, presence, bias ids, bias values, V, biases a
    row, row lengths of logits, counts and biases."""

    def penalize(
        logits, counts, rows, repetition, frequency, presence, bias_ids, bias_values,
        v, biases, logits_ld, counts_ld, bias_ld,
    ):  # fmt: skip
        thread = int32(cuda.threadIdx.x)
        start = int32(cuda.blockIdx.x * SPAN)
        b = int64(cuda.blockIdx.y)
        launch_dependents()
        grid_wait()
        row = int64(ld_i32(rows + b * 4))
        if row < 0:
            return
        place = logits + b * logits_ld * 4
        seen = counts + row * counts_ld * 2
        rep, freq, pres = ld_f32(repetition + b * 4), ld_f32(frequency + b * 4), ld_f32(presence + b * 4)
        count = cuda.local.array(NUMBERS, int32)
        for u in range(NUMBERS):
            i = int64(min(start + thread + u * THREADS, v - 1))
            count[u] = int32(ld_u16(seen + i * 2))
        for u in range(NUMBERS):
            i = int32(start + thread + u * THREADS)
            if i < v and count[u] != 0:
                at = place + int64(i) * 4
                st_f32(at, _penalized(ld_f32(at), count[u], rep, freq, pres))
        barrier()
        j = thread
        while j < biases:
            at = (row * bias_ld + j) * 4
            i = ld_i32(bias_ids + at)
            if i >= start and i < min(start + SPAN, v):
                to = place + int64(i) * 4
                st_f32(to, add_rn(ld_f32(to), ld_f32(bias_values + at)))
            j = int32(j + THREADS)

    return penalize, "i64 i64 i64 i64 i64 i64 i64 i64 i32 i32 i32 i32 i32"


def spec() -> KernelSpec:
    return KernelSpec(
        "penalize", f"{__name__}:penalize_kernel", (), (THREADS, 1, 1), max_registers=64, early=True
    )


def catalog() -> list[KernelSpec]:
    return Penalize.specs()


class Penalize:
    """`penalize(stream, logits, counts, rows, repetition, frequency, presence, bias_ids, bias_values)`:
    logits f32 [B,V] changed in place, counts u16 [S,V], rows i32 [B], three f32 [B], bias_ids i32 [S,NB]
    (-1: none), bias_values f32 [S,NB]."""

    def __init__(self, library: Library) -> None:
        self.kernel = library.function(spec())

    @staticmethod
    def specs() -> list[KernelSpec]:
        return [spec()]

    def __call__(
        self, stream: int, logits, counts, rows, repetition, frequency, presence, bias_ids, bias_values
    ) -> None:
        b, v = logits.shape
        assert bias_ids.ld == bias_values.ld, (bias_ids.ld, bias_values.ld)
        self.kernel(
            stream, (-(-v // SPAN), b, 1), logits.ptr, counts.ptr, rows.ptr, repetition.ptr, frequency.ptr,
            presence.ptr, bias_ids.ptr, bias_values.ptr, v, bias_ids.shape[1], logits.ld, counts.ld,
            bias_ids.ld,
        )  # fmt: skip

    @staticmethod
    def bytes(rows: int, v: int) -> int:
        """When few tokens were seen."""
        return rows * v * 2
