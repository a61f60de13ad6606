"""The smallest logit that top_k and top_p keep, found exactly by one block (definition: sample.py).

Tokens fall into BUCKETS of equal width in logit, from the largest down, which spreads them well whatever
their scale; counts and masses of the buckets are summed as integers in shared memory. Prefix sums name the
bucket in which k tokens or the wanted mass are reached. Its members are few: they are listed, and each looks
at all others. Should they be more than LISTED (logits of very few values), the key is found bit by bit, one
pass over the logits a bit.
"""

from numba import cuda, float32, float64, int32, int64, uint32, uint64

from .ptx import (
    barrier,
    bits_of_f32,
    device,
    div_rn,
    ex2,
    f32_of_bits,
    instruction,
    ld_f32,
    lds32,
    mul_rn,
    sts32,
    sub_rn,
)
from .reduce import block_scan_u64, block_sum_u64, high_half, joined, lds_u64, low_half, sts_u64

THREADS = 512  # 1024 would leave 64 registers a thread, which spill on sm_80
WARPS = THREADS // 32
LOADS = 8  # logits in flight a thread
EACH = 4  # buckets a thread, when they are searched
BUCKETS = EACH * THREADS
LISTED = THREADS
ONE = 1 << 40  # mass of the largest logit
DEEPEST = 41.0  # log2 units below the largest logit from which masses are zero

# Shared memory: counts, low and high words of masses (a bucket); keys, low and high words (a listed token).
_LOWS, _HIGHS = BUCKETS * 4, BUCKETS * 8
_KEYS = BUCKETS * 12
_LIST_LOWS, _LIST_HIGHS = _KEYS + LISTED * 4, _KEYS + LISTED * 8
AREA = _KEYS + LISTED * 12  # a u64 a warp, for reductions
_BUCKET = AREA + WARPS * 8
_FOUND = _BUCKET + 4
_ABOVE, _MASS_ABOVE, _MASS_ALL = _BUCKET + 8, _BUCKET + 16, _BUCKET + 24
_KEY, _KEPT = _BUCKET + 32, _BUCKET + 40
SHARED = _BUCKET + 48

atomic_add = instruction("atom.shared.add.u32 $0, [$1], $2;", "u32", "i32 u32", memory=True)
_scan, _sum = block_scan_u64(WARPS), block_sum_u64(WARPS)


@device
def key_of(x):
    """u32 that orders like f32 x, with -0 = +0."""
    bits = bits_of_f32(x)
    if bits == uint32(0x80000000):
        bits = uint32(0)
    if bits >= uint32(0x80000000):
        return uint32(~bits)
    return uint32(bits | uint32(0x80000000))


@device
def value_of(key):
    """The inverse of key_of."""
    if key >= uint32(0x80000000):
        return f32_of_bits(uint32(key & uint32(0x7FFFFFFF)))
    return f32_of_bits(uint32(~key))


@device
def mass_of(x, top, scale):
    """floor(2^40 * 2^((x - top) * scale)), 0 for what is not a number."""
    p = ex2(mul_rn(sub_rn(x, top), scale))
    if p > float32(0):
        return uint64(mul_rn(p, float32(ONE)))
    return uint64(0)


@device
def load(x, logits, first, step, v):
    """LOADS logits from `first` on, `step` apart; past the end, the last one."""
    for u in range(LOADS):
        x[u] = ld_f32(logits + int64(min(int32(first + u * step), int32(v - 1))) * 4)


@device
def _bucket(x, top, scale, factor):
    """Grows as x falls; factor is BUCKETS over the width of all buckets in log2 units."""
    depth = mul_rn(mul_rn(sub_rn(top, x), scale), factor)
    if depth < float32(BUCKETS - 1):
        return int32(depth)
    return int32(BUCKETS - 1)


@device
def _factor(top, lowest, scale):
    width = mul_rn(sub_rn(top, lowest), scale)
    if not width < float32(DEEPEST):
        width = float32(DEEPEST)
    if width < float32(1e-20):
        return float32(0)
    return div_rn(float32(BUCKETS), width)


@device
def _histogram(logits, v, top, scale, factor, shared, thread):
    """Counts and masses of all buckets; tokens without mass are left out, as they cannot be drawn."""
    i = thread
    while i < 3 * BUCKETS:
        sts32(int32(shared + i * 4), uint32(0))
        i = int32(i + THREADS)
    barrier()
    x = cuda.local.array(LOADS, float32)
    first = thread
    while first < v:
        load(x, logits, first, THREADS, v)
        for u in range(LOADS):
            mass = mass_of(x[u], top, scale)
            if first + u * THREADS < v and mass > uint64(0):
                at = int32(shared + _bucket(x[u], top, scale, factor) * 4)
                low, high = low_half(mass), high_half(mass)
                atomic_add(at, uint32(1))
                before = atomic_add(int32(at + _LOWS), low)
                if uint32(before + low) < low:
                    high = uint32(high + uint32(1))
                if high > uint32(0):
                    atomic_add(int32(at + _HIGHS), high)
        first = int32(first + THREADS * LOADS)
    barrier()


@device
def _mass_in(bucket, shared):
    at = int32(shared + bucket * 4)
    return joined(lds32(int32(at + _LOWS)), lds32(int32(at + _HIGHS)))


@device
def _find_bucket(wanted, counting, shared, thread):
    """Leave the bucket in which the weight from the top reaches `wanted` (-1 if none), the weight and the
    mass above it, and the mass of all. Weight: the number of tokens if `counting`, else their mass."""
    if thread == 0:
        sts32(int32(shared + _BUCKET), uint32(0xFFFFFFFF))
        sts32(int32(shared + _FOUND), uint32(0))
    first = int32(thread * EACH)
    counts, masses = uint64(0), uint64(0)
    for h in range(EACH):
        counts = uint64(counts + uint64(lds32(int32(shared + (first + h) * 4))))
        masses = uint64(masses + _mass_in(int32(first + h), shared))
    counts = uint64(_scan(counts, int32(shared + AREA), thread) - counts)
    masses = uint64(_scan(masses, int32(shared + AREA), thread) - masses)
    for h in range(EACH):
        count = uint64(lds32(int32(shared + (first + h) * 4)))
        mass = _mass_in(int32(first + h), shared)
        above = counts if counting else masses
        weight = count if counting else mass
        if above < wanted and wanted <= uint64(above + weight):
            sts32(int32(shared + _BUCKET), uint32(first + h))
            sts_u64(int32(shared + _ABOVE), above)
            sts_u64(int32(shared + _MASS_ABOVE), masses)
        counts, masses = uint64(counts + count), uint64(masses + mass)
    if thread == THREADS - 1:
        sts_u64(int32(shared + _MASS_ALL), masses)
    barrier()


@device
def _rank(logits, v, top, scale, factor, bucket, wanted, counting, shared, thread):
    """List the bucket's tokens, let each find whether it is the one that reaches `wanted`; leave key and
    kept mass."""
    x = cuda.local.array(LOADS, float32)
    first = thread
    while first < v:
        load(x, logits, first, THREADS, v)
        for u in range(LOADS):
            mass = mass_of(x[u], top, scale)
            if first + u * THREADS < v and mass > uint64(0) and _bucket(x[u], top, scale, factor) == bucket:
                at = int32(shared + int32(atomic_add(int32(shared + _FOUND), uint32(1))) * 4)
                sts32(int32(at + _KEYS), key_of(x[u]))
                sts32(int32(at + _LIST_LOWS), low_half(mass))
                sts32(int32(at + _LIST_HIGHS), high_half(mass))
        first = int32(first + THREADS * LOADS)
    barrier()
    found = int32(lds32(int32(shared + _FOUND)))
    if thread < found:
        mine = lds32(int32(shared + _KEYS + thread * 4))
        above = lds_u64(int32(shared + _ABOVE))
        reached, kept = above, lds_u64(int32(shared + _MASS_ABOVE))
        j = int32(0)
        while j < found:
            at = int32(shared + j * 4)
            key = lds32(int32(at + _KEYS))
            mass = joined(lds32(int32(at + _LIST_LOWS)), lds32(int32(at + _LIST_HIGHS)))
            weight = uint64(1) if counting else mass
            if key > mine:
                above = uint64(above + weight)
            if key >= mine:
                reached = uint64(reached + weight)
                kept = uint64(kept + mass)
            j = int32(j + 1)
        if above < wanted and wanted <= reached:
            sts32(int32(shared + _KEY), mine)
            sts_u64(int32(shared + _KEPT), kept)
    barrier()


@device
def _weight_from(logits, v, top, scale, factor, bucket, key, counting, shared, thread):
    """Weight of the bucket's tokens whose key is at least `key`, in all threads."""
    x = cuda.local.array(LOADS, float32)
    weight = uint64(0)
    first = thread
    while first < v:
        load(x, logits, first, THREADS, v)
        for u in range(LOADS):
            mass = mass_of(x[u], top, scale)
            inside = first + u * THREADS < v and mass > uint64(0) and key_of(x[u]) >= key
            if inside and _bucket(x[u], top, scale, factor) == bucket:
                weight = uint64(weight + (uint64(1) if counting else mass))
        first = int32(first + THREADS * LOADS)
    return _sum(weight, int32(shared + AREA), thread)


@device
def _bisect(logits, v, top, scale, factor, bucket, wanted, counting, shared, thread):
    """What _rank leaves, for a bucket of any size: the largest key from which on `wanted` is reached."""
    above, kept = lds_u64(int32(shared + _ABOVE)), lds_u64(int32(shared + _MASS_ABOVE))
    key = uint32(0)
    bit = int32(31)
    while bit >= -1:  # the last pass sums the masses from the key on
        step = uint32(uint32(1) << uint32(max(bit, 0))) if bit >= 0 else uint32(0)
        tried = uint32(key | step)
        counts = counting and bit >= 0
        weight = _weight_from(logits, v, top, scale, factor, bucket, tried, counts, shared, thread)
        if bit < 0:
            kept = uint64(kept + weight)
        elif uint64(above + weight) >= wanted:
            key = tried
        bit = int32(bit - 1)
    if thread == 0:
        sts32(int32(shared + _KEY), key)
        sts_u64(int32(shared + _KEPT), kept)
    barrier()


@device
def least_key(logits, v, top, lowest, scale, k, p, shared, thread):
    """Key of the smallest logit that top_k = k (0: off) and top_p = p (1: off) keep; 0 when they keep all."""
    least = uint32(0)
    cuts_count, cuts_mass = k > 0 and k < v, p < float32(1)
    if cuts_count or cuts_mass:
        factor = _factor(top, lowest, scale)
        _histogram(logits, v, top, scale, factor, shared, thread)
        # First by count, which also sums the mass of all or of the k; then by mass.
        wanted = uint64(k) if cuts_count else uint64(ONE)
        step = int32(0)
        while step < 2:
            counting = step == 0
            _find_bucket(wanted, counting, shared, thread)
            bucket = int32(lds32(int32(shared + _BUCKET)))
            kept = lds_u64(int32(shared + _MASS_ALL))
            if bucket >= 0:
                if lds32(int32(shared + bucket * 4)) <= uint32(LISTED):
                    _rank(logits, v, top, scale, factor, bucket, wanted, counting, shared, thread)
                else:
                    _bisect(logits, v, top, scale, factor, bucket, wanted, counting, shared, thread)
                least, kept = lds32(int32(shared + _KEY)), lds_u64(int32(shared + _KEPT))
            wanted = max(uint64(float64(p) * float64(kept)), uint64(1))
            step = int32(step + 1 if cuts_mass else 2)
            barrier()
    return least
