"""Attention of one query token a sequence: states of single pages in parallel, then their fold in order.

split: a block is one warp; blocks are spread over (sequence, kv head), each takes every n-th page, loads the
next page's keys while it works on this one's values, and leaves a state of each head of the group in scratch
memory. merge: a block folds the states of one head. Scratch is indexed by page, and a page belongs to one
sequence. Bytes moved: keys and values once; 4 * E * heads a page of scratch, written and read, mostly in L2.
"""

from numba import cuda, float32, int32, int64, uint16, uint32

from .attention_block import (
    NOTHING,
    PAGE,
    copy_page,
    factors,
    first_key,
    load_rows,
    merged,
    pitch,
    product,
    scores,
    total,
    weigh,
    wide,
)
from .build import KernelSpec
from .ptx import (
    cp_async_commit,
    cp_async_wait0,
    cp_async_wait1,
    div_rn,
    dynamic_shared,
    grid_wait,
    launch_dependents,
    ld_f32,
    ld_i32,
    pack_bf16x2,
    st_f32,
    st_u16,
    warp_barrier,
)

ROWS = 16  # most heads of a group
BLOCKS = 2048  # one-warp blocks of a launch, about: twice what an H200 runs at once
AHEAD = 16  # states a merge loads at a time, two latencies each: their pages, then themselves


def split_kernel(dim: int):
    """Arguments: states, q, keys, values, page table, kv_len, H, G, pages a table row, scale * log2(e),
    window."""
    page_bytes = PAGE * pitch(dim)
    width = wide(dim)
    runs, made = dim // (16 * width), 8 * width
    copy, multiply, project = copy_page(dim, 32), scores(dim), product(dim, width)
    query = load_rows(dim, 32, ROWS)
    state = dim + 4

    def attention_split(states, q, keys, values, table, kv_len, heads, groups, per_row, scale, window):
        lane = int32(cuda.threadIdx.x)
        g, b = int32(cuda.blockIdx.y), int32(cuda.blockIdx.z)
        launch_dependents()
        grid_wait()
        position = int32(ld_i32(kv_len + int64(b) * 4) - 1)
        low = first_key(position, window)
        block = int32((low >> 6) + cuda.blockIdx.x)
        end = int32((position >> 6) + 1 if position >= 0 else 0)
        if block >= end:
            return
        step = int32(cuda.gridDim.x)
        group = int32(uint32(heads) // uint32(groups))
        shared = dynamic_shared()
        at_values = int32(shared + page_bytes)
        pages = table + int64(b) * per_row * 4
        page = int64(ld_i32(pages + int64(block) * 4))
        at = (page * groups + g) * (PAGE * dim * 2)
        copy(shared, keys + at, lane)
        cp_async_commit()
        copy(at_values, values + at, lane)
        cp_async_commit()
        s = cuda.local.array(32, float32)
        p = cuda.local.array(16, uint32)
        m = cuda.local.array(2, float32)
        l = cuda.local.array(2, float32)
        part = cuda.local.array(made, float32)
        first = cuda.local.array(2, int32)
        last = cuda.local.array(2, int32)
        for h in range(2):
            first[h] = low
            last[h] = position
        queries = int32(shared + 2 * page_bytes)
        query(queries, q, heads, g, b, int32(0), group, group, lane)
        row = int32(lane >> 2)
        while block < end:
            following = ld_i32(pages + int64(min(block + step, end - 1)) * 4)
            cp_async_wait1()
            warp_barrier()
            multiply(s, queries, shared, lane)
            warp_barrier()
            base = int32(block * PAGE)
            to = states + (page * heads + g * group) * (state * 4)
            block = int32(block + step)
            if block < end:
                page = int64(following)
                at = (page * groups + g) * (PAGE * dim * 2)
                copy(shared, keys + at, lane)
            cp_async_commit()
            weigh(s, p, m, base, first, last, scale, lane)
            total(p, l)
            for h in range(2):
                if (lane & 3) == 0 and row + h * 8 < group:
                    st_f32(to + int64(row + h * 8) * (state * 4), m[h])
                    st_f32(to + int64(row + h * 8) * (state * 4) + 4, l[h])
            cp_async_wait1()
            warp_barrier()
            for n in range(runs):
                project(part, p, at_values, n * width, lane)
                for i in range(made):
                    line = int32(row + ((i >> 1) & 1) * 8)
                    if line < group:
                        column = int32(
                            (n * width + (i >> 3)) * 16 + ((i >> 2) & 1) * 8 + (lane & 3) * 2 + (i & 1)
                        )
                        st_f32(to + (int64(line) * state + 4 + column) * 4, part[i])
            warp_barrier()
            if block < end:
                copy(at_values, values + at, lane)
            cp_async_commit()
        cp_async_wait0()

    return attention_split, "i64 i64 i64 i64 i64 i64 i32 i32 i32 f32 i32"


def merge_kernel(dim: int):
    """Arguments: out, states, page table, kv_len, H, pages a table row, window. A thread owns one of E
    columns."""
    state = dim + 4

    def attention_merge(out, states, table, kv_len, heads, per_row, window):
        e = int32(cuda.threadIdx.x)
        head, b = int32(cuda.blockIdx.x), int32(cuda.blockIdx.y)
        launch_dependents()
        grid_wait()
        position = int32(ld_i32(kv_len + int64(b) * 4) - 1)
        block = int32(first_key(position, window) >> 6)
        end = int32((position >> 6) + 1 if position >= 0 else 0)
        pages = table + int64(b) * per_row * 4
        m = float32(NOTHING)
        l = float32(0)
        o = float32(0)
        found = cuda.local.array(AHEAD, int32)
        ms = cuda.local.array(AHEAD, float32)
        ls = cuda.local.array(AHEAD, float32)
        os = cuda.local.array(AHEAD, float32)
        while block < end:
            for i in range(AHEAD):
                found[i] = ld_i32(pages + int64(min(block + i, end - 1)) * 4)
            for i in range(AHEAD):
                at = states + (int64(found[i]) * heads + head) * (state * 4)
                ms[i] = ld_f32(at)
                ls[i] = ld_f32(at + 4)
                os[i] = ld_f32(at + 16 + int64(e) * 4)
            for i in range(AHEAD):
                if block + i < end:
                    f = factors(m, ms[i])
                    m = f[0]
                    l = merged(l, f[1], ls[i], f[2])
                    o = merged(o, f[1], os[i], f[2])
            block = int32(block + AHEAD)
        y = div_rn(o, l if l > float32(0) else float32(1))
        st_u16(out + ((int64(b) * heads + head) * dim + e) * 2, uint16(pack_bf16x2(y, float32(0))))

    return attention_merge, "i64 i64 i64 i64 i32 i32 i32"


def split_spec(dim: int) -> KernelSpec:
    return KernelSpec(
        f"attention_split_e{dim}",
        f"{__name__}:split_kernel",
        (("dim", dim),),
        block=(32, 1, 1),
        shared=(2 * PAGE + ROWS) * pitch(dim),
        early=True,
    )


def merge_spec(dim: int) -> KernelSpec:
    return KernelSpec(
        f"attention_merge_e{dim}", f"{__name__}:merge_kernel", (("dim", dim),), block=(dim, 1, 1), early=True
    )
