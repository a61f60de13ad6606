"""One block of attention: 16 query rows of a warp against the 64 keys of a page. Prefill and decode share
this file, which is why they give the same bits.

A block's state is (m, l, o) of kernels/ref/attention.py: scores by mma in k16 steps over E, masked and scaled
in f32; p = ex2(s - m) rounded to bf16; l = P 1 and o = P V by mma in k16 steps over the keys. Pages lie in
shared memory in rows of E * 2 + 16 bytes, which puts the eight rows of an ldmatrix on different banks for
every E that is a multiple of 16. Lane l of a warp holds rows g = l//4 and g + 8, columns 2 (l%4) and the next
of each 8 (the m16n8 tile).
"""

import functools

from numba import cuda, float32, int32, int64, uint32

from .ptx import (
    cp_async16,
    device,
    ex2,
    fma_rn,
    instruction,
    ld128,
    ldmatrix4,
    ldmatrix4_trans,
    mma_bf16,
    mul_rn,
    pack_bf16x2,
    shuffle_xor,
    sts128,
    sub_rn,
)

here = instruction("mov.b32 $0, $1;", "i32", "i32")
PAGE = 64
NOTHING = -1e30  # m of a state without keys
ONES = 0x3F803F80  # two bf16 of 1


def pitch(dim: int) -> int:
    """Bytes from one row of a page to the next in shared memory."""
    return dim * 2 + 16


@functools.cache
def copy_page(dim: int, threads: int):
    """A device function (to, source, thread): start copying bf16 [64,E] to shared memory by `threads`
    threads."""
    chunks = dim // 8
    count = PAGE * chunks // threads
    row_bytes = pitch(dim)
    rows = threads // chunks
    whole = threads % chunks == 0  # each thread then has one column of 16 bytes, and constant steps

    @device
    def copy(to, source, thread):
        row = int32(uint32(thread) // uint32(chunks))
        column = int32(thread - row * chunks)
        to = int32(to + row * row_bytes + column * 16)
        at = source + int64(thread) * 16
        for i in range(count):
            if whole:
                cp_async16(int32(to + i * (rows * row_bytes)), at + i * (threads * 16), int32(16))
            else:
                chunk = int32(thread + i * threads)
                line = int32(uint32(chunk) // uint32(chunks))
                place = int32(to + (line - row) * row_bytes + (chunk - line * chunks - column) * 16)
                cp_async16(place, at + i * (threads * 16), int32(16))

    return copy


@functools.cache
def load_rows(dim: int, threads: int, count: int):
    """A device function (to, q, heads, g, start, row0, rows, group, thread): `count` query rows from row0 on
    into shared memory, the last one again where there are no more. Rows are (token, head of the group g),
    from token `start` on; q is [T,H,E]."""
    chunks, row_bytes = dim // 8, pitch(dim)

    @device
    def load(to, q, heads, g, start, row0, rows, group, thread):
        for i in range(count * chunks // threads):
            chunk = int32(thread + i * threads)
            line = int32(uint32(chunk) // uint32(chunks))
            column = int32(chunk - line * chunks)
            row = int32(min(row0 + line, rows - 1))
            token = int32(uint32(row) // uint32(group))
            head = int32(g * group + row - token * group)
            v = ld128(q + ((int64(start + token) * heads + head) * dim + column * 8) * 2)
            sts128(int32(to + line * row_bytes + column * 16), v[0], v[1], v[2], v[3])

    return load


@functools.cache
def _fragments(row_bytes: int):
    """A device function (a, b, queries, keys, k, half): step k's operands into a[4*half ..] and b[16*half
    ..]."""

    @device
    def fetch(a, b, queries, keys, k, half):
        r = ldmatrix4(int32(queries + k * 32))
        for j in range(4):
            a[half * 4 + j] = r[j]
        for n in range(4):
            r = ldmatrix4(int32(keys + n * (16 * row_bytes) + k * 32))
            for j in range(4):
                b[half * 16 + n * 4 + j] = r[j]

    return fetch


@device
def _accumulate(s, a, b, half):
    """s += the product of one k16 step."""
    for n in range(8):
        r = mma_bf16(
            a[half * 4], a[half * 4 + 1], a[half * 4 + 2], a[half * 4 + 3],
            b[half * 16 + n * 2], b[half * 16 + n * 2 + 1],
            s[n * 4], s[n * 4 + 1], s[n * 4 + 2], s[n * 4 + 3],
        )  # fmt: skip
        for j in range(4):
            s[n * 4 + j] = r[j]


@functools.cache
def scores(dim: int):
    """A device function (s, queries, keys, lane): s[32] = Q K^T of 16 rows at the shared address `queries`,
    tile n of 8 keys in s[4n ..]. Fragments are loaded a step ahead of their use."""
    steps, row_bytes = dim // 16, pitch(dim)
    fetch = _fragments(row_bytes)
    odd = steps % 2 == 1

    @device
    def multiply(s, queries, keys, lane):
        a = cuda.local.array(8, uint32)
        b = cuda.local.array(32, uint32)
        for i in range(32):
            s[i] = float32(0)
        at_q = int32(queries + (lane & 15) * row_bytes + (lane >> 4) * 16)
        at_k = int32(keys + ((lane & 7) + ((lane >> 4) << 3)) * row_bytes + ((lane >> 3) & 1) * 16)
        fetch(a, b, at_q, at_k, 0, 0)
        for k in range(0, steps - 1, 2):
            fetch(a, b, at_q, at_k, k + 1, 1)
            _accumulate(s, a, b, 0)
            if k + 2 < steps:
                fetch(a, b, at_q, at_k, k + 2, 0)
            _accumulate(s, a, b, 1)
        if odd:
            _accumulate(s, a, b, 0)

    return multiply


@device
def _larger(a, b):
    return a if a > b else b


@device
def _quad_max(v):
    v = _larger(v, shuffle_xor(v, int32(1)))
    return _larger(v, shuffle_xor(v, int32(2)))


@device
def weigh(s, p, m, base, first, last, scale, lane):
    """Scores s[32] -> p[16], the A operand of P V; m[2], the largest visible score of each of the lane's
    rows.

    Keys are base + column; row h of the lane sees first[h] .. last[h]; `scale` includes log2(e)."""
    column = int32(base + (lane & 3) * 2)
    for i in range(32):
        s[i] = mul_rn(s[i], scale)
    if base < first[1] or base + (PAGE - 1) > last[0]:
        column = here(column)  # keeps the branch: as selects it cost every block a fifth of its instructions
        for i in range(32):
            h, key = (i >> 1) & 1, int32(column + (i >> 2) * 8 + (i & 1))
            if key > last[h] or key < first[h]:
                s[i] = float32(NOTHING)
    for h in range(2):
        m[h] = s[h * 2]
    for i in range(32):
        m[(i >> 1) & 1] = _larger(m[(i >> 1) & 1], s[i])
    for h in range(2):
        m[h] = _quad_max(m[h])
    # ex2 of a hidden key underflows to an exact 0, but for a row that sees none of the block.
    top = m[0] if m[0] > float32(NOTHING / 2) else float32(0)
    low = m[1] if m[1] > float32(NOTHING / 2) else float32(0)
    for i in range(32):
        s[i] = ex2(sub_rn(s[i], low if (i >> 1) & 1 else top))
    for i in range(16):
        p[i] = pack_bf16x2(s[i * 2], s[i * 2 + 1])


@device
def total(p, l):
    """l[2]: sums of p's rows, by a product with ones."""
    a = float32(0)
    b = float32(0)
    c = float32(0)
    d = float32(0)
    for k in range(4):
        r = mma_bf16(
            p[k * 4], p[k * 4 + 1], p[k * 4 + 2], p[k * 4 + 3], uint32(ONES), uint32(ONES), a, b, c, d
        )
        a = r[0]
        b = r[1]
        c = r[2]
        d = r[3]
    l[0] = a
    l[1] = c


def wide(columns: int) -> int:
    """Tiles of 16 columns that P V makes at once: 8 sums hide the latency of an mma."""
    return next(w for w in (4, 3, 2, 1) if columns // 16 % w == 0)


@functools.cache
def product(dim: int, width: int):
    """A device function (o, p, values, n, lane): o[8*width] = columns 16n .. 16(n+width)-1 of P V in m16n8
    tiles."""
    row_bytes = pitch(dim)

    @device
    def multiply(o, p, values, n, lane):
        for i in range(8 * width):
            o[i] = float32(0)
        at = int32(values + ((lane & 7) + ((lane >> 3) & 1) * 8) * row_bytes + (lane >> 4) * 16 + n * 32)
        for k in range(4):
            for w in range(width):
                b = ldmatrix4_trans(int32(at + k * (16 * row_bytes) + w * 32))
                for h in range(2):
                    t = w * 8 + h * 4
                    r = mma_bf16(
                        p[k * 4], p[k * 4 + 1], p[k * 4 + 2], p[k * 4 + 3], b[h * 2], b[h * 2 + 1],
                        o[t], o[t + 1], o[t + 2], o[t + 3],
                    )  # fmt: skip
                    o[t] = r[0]
                    o[t + 1] = r[1]
                    o[t + 2] = r[2]
                    o[t + 3] = r[3]

    return multiply


@device
def factors(m, m_block):
    """(m', what the state so far is multiplied by, what the block's is) of a merge."""
    larger = _larger(m, m_block)
    return larger, ex2(sub_rn(m, larger)), ex2(sub_rn(m_block, larger))


@device
def merged(so_far, old, block, new):
    """so_far * old + block * new, rounded twice in this order everywhere."""
    return fma_rn(so_far, old, mul_rn(block, new))


@device
def first_key(position, window):
    """The first key that `position` sees."""
    first = int32(position - window + 1)
    return first if window > 0 and first > 0 else int32(0)
