"""sample: a token for each row of logits.

Definition. logit_i f32, max the row's largest, T the temperature, b a row:
    token      T = 0: the lowest index of the largest logit; else as follows
    key_i      bits of logit_i as a u32 that orders like the number (-0 = +0)
    mass_i     u64, floor(ex2(e_i) * 2^40), e_i = (logit_i - max) * (f32(log2 e) / T) in f32, each step
    rounded;
               the largest logit has 2^40, so sums stay below 2^63 for V < 2^23 and do not depend on their
               order
    top_k      0 < k < V: keeps the tokens whose logit is not below the k-th largest (ties kept)
    top_p      p < 1: wanted = max(1, floor(f64(p) * f64(sum of kept masses))); going down by logit, keeps
    tokens up
               to the first whose cumulative mass reaches wanted, and those of the same logit
    min_p      p > 0: of what is kept, keeps mass_i >= floor(f64(p) * 2^40)
    draw       Philox4x32-10 (Salmon et al., SC'11), key = seed (low word, high word), counter = (step, 0, 0,
    0);
               r = word0 | word1 << 32; target = floor(r * total / 2^64), total the sum of kept masses; the
               token is the first in index order whose inclusive cumulative mass is above target
Then tokens[b] = last[rows[b]] = token and the low 15 bits of counts[rows[b], token] grow by one, up to
32767. Rows with rows[b] < 0 get token 0 and change nothing else.
"""

from numba import cuda, float32, float64, int32, int64, uint16, uint32, uint64

from . import select
from .build import KernelSpec
from .launch import Library
from .ptx import (
    barrier,
    device,
    div_rn,
    dynamic_shared,
    grid_wait,
    instruction,
    launch_dependents,
    ld128,
    ld_f32,
    ld_i32,
    ld_u16,
    ld_u64,
    st128,
    st_i32,
    st_u16,
)
from .reduce import (
    block_max_u64,
    block_scan_u64,
    high_half,
    joined,
    lds_u64,
    low_half,
    sts_u64,
    warp_scan_u64,
    warp_sum_u64,
)
from .select import AREA, LOADS, THREADS, WARPS, key_of, load, mass_of, value_of

CHUNK_THREADS = 256
CHUNK = CHUNK_THREADS * LOADS  # logits of a block of the first kernel
CELL = 16  # bytes it leaves: u64 key << 32 | ~index of the largest logit, u32 key of the smallest, unused
MOST_CHUNKS = THREADS
LOG2E = 1.4426950408889634

mul_hi_u64 = instruction("mul.hi.u64 $0, $1, $2;", "u64", "u64 u64", pure=True)
_largest = block_max_u64(WARPS)
_scan = block_scan_u64(WARPS)


def chunks_kernel():
    """Largest and smallest logit of each chunk. Arguments: scratch, logits, rows, V, row length, chunks."""
    largest = block_max_u64(CHUNK_THREADS // 32)

    def sample_chunks(scratch, logits, rows, v, ld, chunks):
        thread = int32(cuda.threadIdx.x)
        chunk, b = int32(cuda.blockIdx.x), int64(cuda.blockIdx.y)
        shared = dynamic_shared()
        launch_dependents()
        grid_wait()
        if ld_i32(rows + b * 4) < 0:
            return
        x = cuda.local.array(LOADS, float32)
        first = int32(chunk * CHUNK + thread)
        load(x, logits + b * ld * 4, first, CHUNK_THREADS, v)
        best, high = uint64(0), uint64(0)
        for u in range(LOADS):
            key = key_of(x[u])
            at = uint32(min(first + u * CHUNK_THREADS, v - 1))
            best = max(best, joined(uint32(~at), key))
            high = max(high, uint64(uint32(~key)))
        best = largest(best, shared, thread)
        high = largest(high, shared, thread)
        if thread == 0:
            to = scratch + (b * chunks + chunk) * CELL
            st128(to, low_half(best), high_half(best), uint32(~low_half(high)), uint32(0))

    return sample_chunks, "i64 i64 i64 i32 i32 i32"


@device
def _extremes(scratch, chunks, shared, thread):
    """u64 key << 32 | ~index of the row's largest logit, u32 key of its smallest."""
    best, high = uint64(0), uint64(0)
    if thread < chunks:
        cell = ld128(scratch + int64(thread) * CELL)
        best, high = joined(cell[0], cell[1]), uint64(uint32(~cell[2]))
    best = _largest(best, shared, thread)
    high = _largest(high, shared, thread)
    return best, uint32(~low_half(high))


@device
def _index(best):
    return int32(uint32(~low_half(best)))


@device
def random_bits(seed, step):
    """The first 64 bits of Philox4x32-10 for key `seed`, counter (step, 0, 0, 0)."""
    c0, c1, c2, c3 = uint32(step), uint32(0), uint32(0), uint32(0)
    k0, k1 = low_half(seed), high_half(seed)
    for _ in range(10):
        p = uint64(uint64(c0) * uint64(0xD2511F53))
        q = uint64(uint64(c2) * uint64(0xCD9E8D57))
        c0 = uint32(uint32(high_half(q) ^ c1) ^ k0)
        c1 = low_half(q)
        c2 = uint32(uint32(high_half(p) ^ c3) ^ k1)
        c3 = low_half(p)
        k0 = uint32(k0 + uint32(0x9E3779B9))
        k1 = uint32(k1 + uint32(0xBB67AE85))
    return joined(c0, c1)


@device
def _kept(x, top, scale, least_key, least_mass):
    """A token's mass, 0 if the restrictions drop it."""
    mass = mass_of(x, top, scale)
    if key_of(x) < least_key or mass < least_mass:
        mass = uint64(0)
    return mass


@device
def _owner(mass, r, shared, thread):
    """Which warp's part holds the drawn mass, of the sums `mass` of all warps' parts:
    (warp, mass before its part, target, mass of all)."""
    warp, lane, area = int32(thread >> 5), int32(thread & 31), int32(shared + AREA)
    if lane == 0:
        sts_u64(int32(area + warp * 8), mass)
    barrier()
    mass = lds_u64(int32(area + lane * 8)) if lane < WARPS else uint64(0)
    total = warp_sum_u64(mass)
    target = mul_hi_u64(r, total)
    after = warp_scan_u64(mass, lane)
    before = uint64(after - mass)
    if warp == 0 and before <= target and target < after:
        sts_u64(shared, uint64(lane))
        sts_u64(int32(shared + 8), before)
    barrier()
    return int32(lds_u64(shared)), lds_u64(int32(shared + 8)), target, total


@device
def _draw(logits, v, top, scale, least_key, least_mass, r, shared, thread):
    """The drawn token in the one thread that finds it, -1 in all others (in all, if there is no mass)."""
    warp, lane = int32(thread >> 5), int32(thread & 31)
    part = int32((v + THREADS * LOADS - 1) // (THREADS * LOADS) * (32 * LOADS))  # logits of a warp
    x = cuda.local.array(LOADS, float32)
    mass = uint64(0)
    first = int32(warp * part + lane)
    stop = int32(min(warp * part + part, v))
    while first < stop:
        load(x, logits, first, 32, v)
        for u in range(LOADS):
            if first + u * 32 < stop:
                mass = uint64(mass + _kept(x[u], top, scale, least_key, least_mass))
        first = int32(first + 32 * LOADS)
    owner, before, target, total = _owner(warp_sum_u64(mass), r, shared, thread)
    if total == uint64(0):
        return int32(-1), total
    each = int32(part // THREADS + (1 if part % THREADS != 0 else 0))
    first = int32(owner * part + thread * each)
    stop = int32(min(min(first + each, owner * part + part), v))
    mass = uint64(0)
    i = first
    while i < stop:
        mass = uint64(mass + _kept(ld_f32(logits + int64(i) * 4), top, scale, least_key, least_mass))
        i = int32(i + 1)
    after = uint64(before + _scan(mass, int32(shared + AREA), thread))
    reached = uint64(after - mass)
    token = int32(-1)
    if reached <= target and target < after:
        i = first
        while token < 0 and i < stop:
            reached = uint64(
                reached + _kept(ld_f32(logits + int64(i) * 4), top, scale, least_key, least_mass)
            )
            if reached > target:
                token = i
            i = int32(i + 1)
    return token, total


@device
def _commit(tokens, last, counts, b, row, counts_ld, token):
    """The row's choice, written by one thread."""
    st_i32(tokens + b * 4, token)
    st_i32(last + row * 4, token)
    at = counts + (row * counts_ld + token) * 2
    count = int32(ld_u16(at))
    if (count & 0x7FFF) < 0x7FFF:
        st_u16(at, uint16(count + 1))


def rows_kernel():
    """Choose and write a token a block. Arguments: tokens, last, counts, logits, scratch, rows, temperature,
    top_p, min_p, top_k, seeds, steps, V, row lengths of logits and counts, chunks."""

    def sample_rows(
        tokens, last, counts, logits, scratch, rows, temperature, top_p, min_p, top_k, seeds, steps,
        v, ld, counts_ld, chunks,
    ):  # fmt: skip
        thread, b = int32(cuda.threadIdx.x), int64(cuda.blockIdx.x)
        shared = dynamic_shared()
        launch_dependents()
        grid_wait()
        row = int64(ld_i32(rows + b * 4))
        if row < 0:
            if thread == 0:
                st_i32(tokens + b * 4, int32(0))
            return
        best, lowest = _extremes(scratch + b * chunks * CELL, chunks, int32(shared + AREA), thread)
        temp = ld_f32(temperature + b * 4)
        if temp == float32(0):
            if thread == 0:
                _commit(tokens, last, counts, b, row, counts_ld, _index(best))
            return
        logits += b * ld * 4
        top = value_of(high_half(best))
        scale = div_rn(float32(LOG2E), temp)
        k, p = ld_i32(top_k + b * 4), ld_f32(top_p + b * 4)
        least_key = select.least_key(logits, v, top, value_of(lowest), scale, k, p, shared, thread)
        least_mass = uint64(float64(ld_f32(min_p + b * 4)) * float64(select.ONE))
        r = random_bits(ld_u64(seeds + b * 8), ld_i32(steps + b * 4))
        token, total = _draw(logits, v, top, scale, least_key, least_mass, r, shared, thread)
        if total == uint64(0) and thread == 0:
            token = _index(best)  # logits that are not finite
        if token >= 0:
            _commit(tokens, last, counts, b, row, counts_ld, token)

    return sample_rows, "i64 i64 i64 i64 i64 i64 i64 i64 i64 i64 i64 i64 i32 i32 i32 i32"


def chunks_spec() -> KernelSpec:
    return KernelSpec(
        "sample_chunks", f"{__name__}:chunks_kernel", (), (CHUNK_THREADS, 1, 1),
        shared=CHUNK_THREADS // 32 * 8, max_registers=64, early=True,
    )  # fmt: skip


def rows_spec() -> KernelSpec:
    return KernelSpec(
        "sample_rows", f"{__name__}:rows_kernel", (), (THREADS, 1, 1),
        shared=select.SHARED, max_registers=96, early=True,
    )  # fmt: skip


def catalog() -> list[KernelSpec]:
    return Sample.specs()


class Sample:
    """`sample(stream, tokens, last, counts, logits, rows, temperature, top_p, min_p, top_k, seeds, steps,
    scratch)`: tokens i32 [B], last i32 [S], counts u16 [S,V], logits f32 [B,V], rows i32 [B], three f32 [B],
    top_k i32 [B], seeds u64 [B], steps i32 [B]; scratch: address of scratch_bytes(B, V) bytes, 16-byte
    aligned. Two kernels: the extremes of chunks of logits by many blocks, then a block a row, which is all
    that greedy rows need."""

    def __init__(self, library: Library) -> None:
        self.chunks, self.rows = library.function(chunks_spec()), library.function(rows_spec())

    @staticmethod
    def specs() -> list[KernelSpec]:
        return [chunks_spec(), rows_spec()]

    @staticmethod
    def scratch_bytes(rows: int, v: int) -> int:
        return rows * -(-v // CHUNK) * CELL

    def __call__(
        self, stream: int, tokens, last, counts, logits, rows, temperature, top_p, min_p, top_k, seeds, steps,
        scratch: int,
    ) -> None:  # fmt: skip
        b, v = logits.shape
        chunks = -(-v // CHUNK)
        assert chunks <= MOST_CHUNKS and scratch % 16 == 0, (v, scratch)
        self.chunks(stream, (chunks, b, 1), scratch, logits.ptr, rows.ptr, v, logits.ld, chunks)
        self.rows(
            stream, (b, 1, 1), tokens.ptr, last.ptr, counts.ptr, logits.ptr, scratch, rows.ptr,
            temperature.ptr, top_p.ptr, min_p.ptr, top_k.ptr, seeds.ptr, steps.ptr, v, logits.ld, counts.ld,
            chunks,
        )  # fmt: skip

    @staticmethod
    def bytes(rows: int, v: int) -> int:
        """Of greedy rows; others read their logits up to five times more, from L2."""
        return rows * v * 4
