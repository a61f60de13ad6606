"""Sums, largest values and prefix sums of a warp and of a block, in an order that is always the same.

All are collective: every thread of the warp or block calls them, at one place. Block functions are made for a
number of warps; they take the int32 address of `warps` 8-byte cells of shared memory, which are free again
after.
"""

from numba import int32, uint32, uint64

from .ptx import add_rn, barrier, device, instruction, lds_f32, shuffle_xor, shuffle_xor_u32, sts_f32

lds_u64 = instruction("ld.shared.u64 $0, [$1];", "u64", "i32", memory=True)
sts_u64 = instruction("st.shared.u64 [$0], $1;", "", "i32 u64", memory=True)
# From the lane `distance` below; lanes without one keep their own value.
shuffle_up = instruction("shfl.sync.up.b32 $0, $1, $2, 0, -1;", "u32", "u32 i32", memory=True)


@device
def low_half(v):
    return uint32(v & uint64(0xFFFFFFFF))


@device
def high_half(v):
    return uint32(v >> uint64(32))


@device
def joined(low, high):
    """u64 of two u32."""
    return uint64(uint64(uint64(high) << uint64(32)) | uint64(low))


@device
def exchange(v, distance):
    """u64 of lane ^ distance."""
    return joined(shuffle_xor_u32(low_half(v), distance), shuffle_xor_u32(high_half(v), distance))


@device
def larger(a, b):
    return a if a > b else b


@device
def warp_sum(v):
    """f32 sum over the lanes, the same bits in each: a butterfly, far lanes first."""
    v = add_rn(v, shuffle_xor(v, int32(16)))
    v = add_rn(v, shuffle_xor(v, int32(8)))
    v = add_rn(v, shuffle_xor(v, int32(4)))
    v = add_rn(v, shuffle_xor(v, int32(2)))
    return add_rn(v, shuffle_xor(v, int32(1)))


@device
def warp_sum_u64(v):
    v = uint64(v + exchange(v, int32(16)))
    v = uint64(v + exchange(v, int32(8)))
    v = uint64(v + exchange(v, int32(4)))
    v = uint64(v + exchange(v, int32(2)))
    return uint64(v + exchange(v, int32(1)))


@device
def warp_max_u64(v):
    v = larger(v, exchange(v, int32(16)))
    v = larger(v, exchange(v, int32(8)))
    v = larger(v, exchange(v, int32(4)))
    v = larger(v, exchange(v, int32(2)))
    return larger(v, exchange(v, int32(1)))


@device
def warp_scan_u64(v, lane):
    """Sum over this lane and those below."""
    for i in range(5):
        distance = int32(1 << i)
        below = joined(shuffle_up(low_half(v), distance), shuffle_up(high_half(v), distance))
        if lane >= distance:
            v = uint64(v + below)
    return v


def block_sum(warps: int):
    """A device function (f32, shared, thread) -> the block's sum in all threads, warps added in order."""

    @device
    def add(v, shared, thread):
        v = warp_sum(v)
        if thread & 31 == 0:
            sts_f32(int32(shared + (thread >> 5) * 8), v)
        barrier()
        v = lds_f32(shared)
        for w in range(1, warps):
            v = add_rn(v, lds_f32(int32(shared + w * 8)))
        barrier()
        return v

    return add


def block_sum_u64(warps: int):
    """A device function (u64, shared, thread) -> the block's sum in all threads."""

    @device
    def add(v, shared, thread):
        v = warp_sum_u64(v)
        if thread & 31 == 0:
            sts_u64(int32(shared + (thread >> 5) * 8), v)
        barrier()
        lane = int32(thread & 31)
        v = lds_u64(int32(shared + lane * 8)) if lane < warps else uint64(0)
        v = warp_sum_u64(v)
        barrier()
        return v

    return add


def block_max_u64(warps: int):
    """A device function (u64, shared, thread) -> the block's largest in all threads. Of key << 32 | ~index
    it is the largest key with its lowest index."""

    @device
    def largest(v, shared, thread):
        v = warp_max_u64(v)
        if thread & 31 == 0:
            sts_u64(int32(shared + (thread >> 5) * 8), v)
        barrier()
        lane = int32(thread & 31)
        v = lds_u64(int32(shared + lane * 8)) if lane < warps else uint64(0)
        v = warp_max_u64(v)
        barrier()
        return v

    return largest


def block_scan_u64(warps: int):
    """A device function (u64, shared, thread) -> sum over this thread and those below."""

    @device
    def scan(v, shared, thread):
        warp, lane = int32(thread >> 5), int32(thread & 31)
        v = warp_scan_u64(v, lane)
        if lane == 31:
            sts_u64(int32(shared + warp * 8), v)
        barrier()
        w = int32(0)
        while w < warp:
            v = uint64(v + lds_u64(int32(shared + w * 8)))
            w = int32(w + 1)
        barrier()
        return v

    return scan
