"""Attention of many query rows: flash attention over pages, in the fold of kernels/ref/attention.py.

A block of four warps owns 64 rows of one sequence and kv head (rows are (token, head of the group) flattened,
so a group shares every key it loads) and walks the pages that any of them sees; pages come by cp.async, two
stages. Each block state is merged into the row's at once. Bytes moved: q and out once, keys and values once a
tile of 64 rows.
"""

from numba import cuda, float32, int32, int64, uint32

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
from .build import TARGETS, KernelSpec
from .ptx import (
    barrier,
    cp_async_commit,
    cp_async_wait0,
    cp_async_wait1,
    device,
    div_rn,
    dynamic_shared,
    grid_wait,
    launch_dependents,
    ld_i32,
    pack_bf16x2,
    st32,
)

ROWS = 64
SMALL = (86, 89, 120)  # targets with 99 KiB of shared memory a block
THREADS = 128


def prefill_kernel(dim: int, stages: int):
    """Arguments: out, q, keys, values, page table, q_start, kv_len, H, G, pages a table row, scale * log2(e),
    window."""
    row_bytes = pitch(dim)
    page_bytes = PAGE * row_bytes
    parts = parts_of(dim)
    columns = dim // parts
    outputs, width = columns // 2, wide(columns)
    runs, made = columns // (16 * width), 8 * width
    copy, multiply, project = copy_page(dim, THREADS), scores(dim), product(dim, width)
    query = load_rows(dim, THREADS, ROWS)
    finish = _store_rows(dim, columns)
    wait = cp_async_wait1 if stages == 2 else cp_async_wait0

    def attention_prefill(
        out, q, keys, values, table, q_start, kv_len, heads, groups, per_row, scale, window
    ):
        thread = int32(cuda.threadIdx.x)
        lane, warp = int32(thread & 31), int32(thread >> 5)
        g, b = int32(cuda.blockIdx.y), int32(cuda.blockIdx.z)
        launch_dependents()
        grid_wait()
        start = ld_i32(q_start + int64(b) * 4)
        count = int32(ld_i32(q_start + int64(b) * 4 + 4) - start)
        length = ld_i32(kv_len + int64(b) * 4)
        group = int32(uint32(heads) // uint32(groups))
        part0 = int32(cuda.blockIdx.x & (parts - 1))  # which of the output's parts this block makes
        behind = int32(cuda.gridDim.x - 1 - cuda.blockIdx.x)  # the last tiles see most keys: they go first
        row0 = int32(int32(uint32(behind) // uint32(parts)) * ROWS)
        rows = int32(count * group)
        if row0 >= rows:
            return
        shared = dynamic_shared()
        queries = int32(shared + 2 * stages * page_bytes)
        query(queries, q, heads, g, start, row0, rows, group, thread)
        past = int32(length - count)  # position of the sequence's first row
        top = int32(past + uint32(min(row0 + ROWS, rows) - 1) // uint32(group))
        block = int32(first_key(int32(past + uint32(row0) // uint32(group)), window) >> 6)
        end = int32((top >> 6) + 1 if length > 0 else block)
        mine = int32(row0 + warp * 16 + (lane >> 2))
        last = cuda.local.array(2, int32)
        first = cuda.local.array(2, int32)
        m, l = cuda.local.array(2, float32), cuda.local.array(2, float32)
        m_block, l_block = cuda.local.array(2, float32), cuda.local.array(2, float32)
        old, new = cuda.local.array(2, float32), cuda.local.array(2, float32)
        o = cuda.local.array(outputs, float32)
        part = cuda.local.array(made, float32)
        s = cuda.local.array(32, float32)
        p = cuda.local.array(16, uint32)
        for h in range(2):
            position = int32(past + uint32(min(mine + h * 8, rows - 1)) // uint32(group))
            last[h] = position
            first[h] = first_key(position, window)
            m[h] = float32(NOTHING)
            l[h] = float32(0)
        for i in range(outputs):
            o[i] = float32(0)
        pages = table + int64(b) * per_row * 4
        page = int32(0)  # of the next block to copy, read a block ahead: addresses must not wait for it
        if block < end:
            at = (int64(ld_i32(pages + int64(block) * 4)) * groups + g) * (PAGE * dim * 2)
            copy(shared, keys + at, thread)
            copy(int32(shared + page_bytes), values + at, thread)
            page = ld_i32(pages + int64(min(block + 1, end - 1)) * 4)
        cp_async_commit()
        slot = int32(0)
        while block < end:
            here = int32(shared + slot * (2 * page_bytes))
            if stages == 2:
                slot = int32(slot ^ 1)
                if block + 1 < end:
                    at = (int64(page) * groups + g) * (PAGE * dim * 2)
                    there = int32(shared + slot * (2 * page_bytes))
                    copy(there, keys + at, thread)
                    copy(int32(there + page_bytes), values + at, thread)
                cp_async_commit()
                page = ld_i32(pages + int64(min(block + 2, end - 1)) * 4)
            wait()
            barrier()
            multiply(s, int32(queries + warp * (16 * row_bytes)), here, lane)
            weigh(s, p, m_block, int32(block * PAGE), first, last, scale, lane)
            total(p, l_block)
            for h in range(2):
                f = factors(m[h], m_block[h])
                m[h] = f[0]
                old[h] = f[1]
                new[h] = f[2]
                l[h] = merged(l[h], f[1], l_block[h], f[2])
            for n in range(runs):
                project(part, p, int32(here + page_bytes + part0 * (columns * 2)), n * width, lane)
                for i in range(made):
                    h = (i >> 1) & 1
                    o[n * made + i] = merged(o[n * made + i], old[h], part[i], new[h])
            barrier()
            block = int32(block + 1)
            if stages == 1:
                if block < end:
                    at = (int64(page) * groups + g) * (PAGE * dim * 2)
                    copy(shared, keys + at, thread)
                    copy(int32(shared + page_bytes), values + at, thread)
                    page = ld_i32(pages + int64(min(block + 1, end - 1)) * 4)
                cp_async_commit()
        finish(out + int64(part0) * (columns * 2), o, l, start, mine, rows, group, heads, g, lane)

    return attention_prefill, "i64 i64 i64 i64 i64 i64 i64 i32 i32 i32 f32 i32"


def parts_of(dim: int) -> int:
    """Blocks that share a tile of rows: heads of more than 128 have too many outputs for one block's
    registers."""
    return 2 if dim > 128 else 1


def _store_rows(dim: int, columns: int):
    """o / l of the lane's two rows as bf16; a row without keys is zeros."""
    tiles = columns // 8

    @device
    def store(out, o, l, start, mine, rows, group, heads, g, lane):
        for h in range(2):
            row = int32(mine + h * 8)
            if row < rows:
                token = int32(uint32(row) // uint32(group))
                head = int32(g * group + row - token * group)
                at = out + ((int64(start + token) * heads + head) * dim + (lane & 3) * 2) * 2
                divisor = l[h] if l[h] > float32(0) else float32(1)
                for n in range(tiles):
                    x, y = div_rn(o[n * 4 + h * 2], divisor), div_rn(o[n * 4 + h * 2 + 1], divisor)
                    st32(at + n * 16, pack_bf16x2(x, y))

    return store


def spec(dim: int, sm: int) -> KernelSpec:
    """Heads of more than 128 get one stage where shared memory is small."""
    stages = 1 if dim > 128 and sm in SMALL else 2
    return KernelSpec(
        f"attention_prefill_e{dim}_s{stages}",
        f"{__name__}:prefill_kernel",
        (("dim", dim), ("stages", stages)),
        block=(THREADS, 1, 1),
        shared=(2 * stages + 1) * PAGE * pitch(dim),
        only_sm=() if dim <= 128 else tuple(t for t in TARGETS if (t in SMALL) == (stages == 1)),
        early=True,
    )
