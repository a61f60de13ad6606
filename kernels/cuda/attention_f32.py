"""Attention in f32, for the mode that checks and tiny models run in: one warp a (token, head), any head size.

The fold of kernels/ref/attention.py over pages; a lane has two of a block's keys, then every 32nd column of
the output. The block's probabilities pass through shared memory.
"""

from numba import cuda, float32, int32, int64, uint32

from .attention_block import NOTHING, PAGE, factors, first_key, merged
from .build import KernelSpec
from .ptx import (
    device,
    div_rn,
    dynamic_shared,
    ex2,
    fma_rn,
    grid_wait,
    launch_dependents,
    ld_f32,
    ld_i32,
    lds_f32,
    mul_rn,
    shuffle_xor,
    st_f32,
    sts_f32,
    sub_rn,
    warp_barrier,
)
from .reduce import larger, warp_sum


@device
def _warp_max(v):
    for i in range(5):
        v = larger(v, shuffle_xor(v, int32(16 >> i)))
    return v


@device
def _sequence_of(token, q_start, sequences):
    """The sequence that owns a token of the step."""
    b = int32(0)
    while b + 1 < sequences and ld_i32(q_start + int64(b + 1) * 4) <= token:
        b = int32(b + 1)
    return b


def f32_kernel(dim: int):
    """Arguments: out, q, keys, values, page table, q_start, kv_len, H, G, B, pages a table row, scale *
    log2(e), window."""
    count = (dim + 31) // 32

    def attention_f32(
        out, q, keys, values, table, q_start, kv_len, heads, groups, batch, width, scale, window
    ):
        lane = int32(cuda.threadIdx.x)
        head = int32(cuda.blockIdx.y)
        token = int32(cuda.blockIdx.x)
        launch_dependents()
        grid_wait()
        b = _sequence_of(token, q_start, batch)
        length = ld_i32(kv_len + int64(b) * 4)
        position = int32(length - (ld_i32(q_start + int64(b + 1) * 4) - token))
        g = int64(uint32(head) // uint32(uint32(heads) // uint32(groups)))
        query = q + (int64(token) * heads + head) * (dim * 4)
        low = first_key(position, window)
        block = int32(low >> 6)
        end = int32((position >> 6) + 1 if length > 0 else 0)
        shared = dynamic_shared()
        s = cuda.local.array(2, float32)
        o = cuda.local.array(count, float32)
        for i in range(count):
            o[i] = float32(0)
        m = float32(NOTHING)
        l = float32(0)
        while block < end:
            page = int64(ld_i32(table + (int64(b) * width + block) * 4))
            at = (page * groups + g) * (PAGE * dim * 4)
            for h in range(2):
                key = int32(block * PAGE + lane + h * 32)
                s[h] = float32(NOTHING)
                if key <= position and key >= low:
                    row = keys + at + int64(lane + h * 32) * (dim * 4)
                    total = float32(0)
                    for e in range(dim):
                        total = fma_rn(ld_f32(query + int64(e) * 4), ld_f32(row + int64(e) * 4), total)
                    s[h] = mul_rn(total, scale)
            m_block = _warp_max(larger(s[0], s[1]))
            for h in range(2):
                s[h] = ex2(sub_rn(s[h], m_block)) if s[h] > float32(NOTHING / 2) else float32(0)
                sts_f32(int32(shared + (lane + h * 32) * 4), s[h])
            l_block = warp_sum(s[0]) + warp_sum(s[1])
            warp_barrier()
            f = factors(m, m_block)
            m = f[0]
            l = merged(l, f[1], l_block, f[2])
            for i in range(count):
                e = int32(lane + i * 32)
                if e < dim:
                    part = float32(0)
                    for j in range(PAGE):
                        v = ld_f32(values + at + (int64(j) * dim + e) * 4)
                        part = fma_rn(lds_f32(int32(shared + j * 4)), v, part)
                    o[i] = merged(o[i], f[1], part, f[2])
            warp_barrier()
            block = int32(block + 1)
        divisor = l if l > float32(0) else float32(1)
        for i in range(count):
            e = int32(lane + i * 32)
            if e < dim:
                st_f32(out + ((int64(token) * heads + head) * dim + e) * 4, div_rn(o[i], divisor))

    return attention_f32, "i64 i64 i64 i64 i64 i64 i64 i32 i32 i32 i32 f32 i32"


def spec(dim: int) -> KernelSpec:
    return KernelSpec(
        f"attention_f32_e{dim}",
        f"{__name__}:f32_kernel",
        (("dim", dim),),
        block=(32, 1, 1),
        shared=PAGE * 4,
        early=True,
    )
