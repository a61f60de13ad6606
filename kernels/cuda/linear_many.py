"""Many-row matmul: out[T,N] = x[T,K] W[N,K]^T for more than 32 tokens, bound by the tensor cores.

A block owns 128 output rows and a tile of tokens. Weights go from global memory straight into A fragments
(their order on the device is fragment order, each warp owns its 16 rows, so nothing is decoded twice); tokens
go through shared memory by cp.async, 64 k a stage, 16-byte chunks XOR-swizzled. The K schedule is
linear_few's: k16 steps in order, one f32 sum for each of CHUNKS chunks of K, the sums added in chunk order at
the borders. mma.sync and wgmma give the same bits for the same sixteen k's a step, so sm_90 may use either.
"""

import numba
from numba import cuda, float32, int32, int64, uint32

from . import activation, wgmma
from .build import TARGETS, KernelSpec, resolve
from .linear_few import CHUNKS
from .ptx import (
    barrier,
    cp_async16,
    cp_async_commit,
    cp_async_wait1,
    cp_async_wait2,
    device,
    dynamic_shared,
    fence_async_proxy,
    gather,
    grid_wait,
    launch_dependents,
    ld_f32,
    ldmatrix4,
    mma_bf16,
    pack_bf16x2,
    scatter,
    st_f32,
    st_u16,
)

ROWS = 128
STAGES = {"wgmma": 4, "mma": 3}  # of a step's tokens in shared memory: one in use, the rest under way
TILES = (
    16  # token tiles that run side by side: with 8 weight tiles a square wave, whose x stays in the L2 cache
)
GROUPS = 2  # 64-k groups a step; one, with its fence and barrier, left half of the tensor cores' time unused


def many_rows(decoder: str, columns: int, engine: str, gated: bool):
    """Kernel for tiles of `columns` tokens; `engine` "mma" or "wgmma". Arguments: linear_few's, row tiles."""
    source = resolve(decoder)
    fetch, unpack, raw = source.fetch, source.unpack, source.raw
    take, put, put_fragments = gather(raw), scatter(raw), scatter(16)
    sums, tiles = columns // 2, columns // 8
    registers, fragments = GROUPS * raw, GROUPS * 16
    stages, wait = STAGES[engine], cp_async_wait2 if engine == "wgmma" else cp_async_wait1
    half = columns * 128
    stage = GROUPS * half
    start, settle = _wgmma(columns) if engine == "wgmma" else _mma(columns)
    copy = _copy_group(columns)
    finish = _store_gated(tiles) if gated else _store_plain(tiles)
    slack = 1023 if engine == "wgmma" else 0

    def linear_many(out, x, p0, p1, p2, p3, bias, tokens, n, groups, x_ld, out_ld, mode, row_tiles):
        thread = int32(cuda.threadIdx.x)
        lane, warp = int32(thread & 31), int32(thread >> 5)
        g, t = int32(lane >> 2), int32(lane & 3)
        tile_row = int32(cuda.blockIdx.y * 8 + warp)
        token0 = int32((cuda.blockIdx.z * TILES + cuda.blockIdx.x) * columns)
        tile = int64(min(tile_row, row_tiles - 1)) * groups
        shared = int32(int32(dynamic_shared() + slack) & int32(~slack))
        span = int32((groups + CHUNKS - 1) >> 3)
        acc = cuda.local.array(sums, float32)
        total = cuda.local.array(sums, float32)
        weights = cuda.local.array(registers, uint32)
        a = cuda.local.array(fragments, uint32)
        for j in range(sums):
            acc[j] = float32(0)
            total[j] = float32(0)
        # First group of a step and groups left in its chunk: of the tokens being copied, of the weights being
        # fetched, and of the multiply. No division here: its call would make ptxas serialise wgmma.
        copied, copied_left = int32(0), span
        fetched, fetched_left = int32(0), span
        used, used_left = int32(0), span
        for d in range(GROUPS):
            put(weights, d * raw, fetch(p0, p1, p2, p3, tile + min(d, groups - 1), lane))
        launch_dependents()
        grid_wait()
        for s in range(stages - 1):
            for d in range(GROUPS):
                present = d < copied_left and copied + d < groups
                to = int32(shared + s * stage + d * half)
                copy(to, x, copied + d, present, token0, tokens, x_ld, thread)
            cp_async_commit()
            copied, copied_left = _next(copied, copied_left, span)
        slot = int32(0)
        fill = int32(stages - 1)
        while used < groups:
            for d in range(GROUPS):
                put_fragments(a, d * 16, unpack(take(weights, d * raw), lane))
                if d >= used_left or used + d >= groups:
                    for j in range(16):
                        a[d * 16 + j] = uint32(0)
            wait()
            if engine == "wgmma":
                fence_async_proxy()
            barrier()
            for d in range(GROUPS):
                start(acc, a, d * 16, int32(shared + slot * stage + d * half), lane)
            fetched, fetched_left = _next(fetched, fetched_left, span)
            for d in range(GROUPS):
                if fetched + d < groups:
                    put(weights, d * raw, fetch(p0, p1, p2, p3, tile + fetched + d, lane))
            for d in range(GROUPS):
                present = d < copied_left and copied + d < groups
                to = int32(shared + fill * stage + d * half)
                copy(to, x, copied + d, present, token0, tokens, x_ld, thread)
            cp_async_commit()
            copied, copied_left = _next(copied, copied_left, span)
            settle(acc)
            slot = int32(slot + 1 if slot + 1 < stages else 0)
            fill = int32(fill + 1 if fill + 1 < stages else 0)
            used, used_left = _next(used, used_left, span)
            if used_left == span:
                for j in range(sums):
                    total[j] += acc[j]
                    acc[j] = float32(0)
        if tile_row < row_tiles:
            finish(out, total, acc, bias, tile_row, int32(token0 + 2 * t), tokens, n, g, out_ld, mode)

    return linear_many, "i64 i64 i64 i64 i64 i64 i64 i32 i32 i32 i32 i32 i32 i32"


@device
def _next(group, left, span):
    """The step after: its first group, and the groups left in its chunk. No step reaches over a chunk's
    border."""
    if left > GROUPS:
        return int32(group + GROUPS), int32(left - GROUPS)
    return int32(group + left), span


def _store_plain(tiles: int):
    """Sums, plus bias, plus what is there. Everything that is there is loaded before anything is stored: one
    load after the other took as long as the product of a 4096 x 4096 weight."""

    @device
    def store(out, total, before, bias, tile_row, token0, tokens, n, g, out_ld, mode):
        row0 = int32(tile_row * 16 + g)
        if mode == 1:
            for i in range(tiles * 4):
                token, row = int32(token0 + (i >> 2) * 8 + (i & 1)), int32(row0 + (i & 2) * 4)
                if token < tokens and row < n:
                    before[i] = ld_f32(out + (int64(token) * out_ld + row) * 4)
        for v in range(2):
            row = int32(row0 + v * 8)
            if row < n:
                extra = float32(0)
                if bias != 0:
                    extra = ld_f32(bias + int64(row) * 4)
                for c in range(tiles):
                    for h in range(2):
                        token = int32(token0 + c * 8 + h)
                        if token < tokens:
                            y = total[c * 4 + v * 2 + h]
                            if bias != 0:
                                y += extra
                            if mode == 1:
                                y += before[c * 4 + v * 2 + h]
                            st_f32(out + (int64(token) * out_ld + row) * 4, y)

    return store


def _store_gated(tiles: int):
    """act(gate) * up: rows g and g + 8 of a tile are a gate and its up."""

    @device
    def store(out, total, before, bias, tile_row, token0, tokens, n, g, out_ld, mode):
        for c in range(tiles):
            for h in range(2):
                token = int32(token0 + c * 8 + h)
                if token < tokens:
                    y = activation.glu(total[c * 4 + h], total[c * 4 + 2 + h], mode)
                    at = out + (int64(token) * out_ld + tile_row * 8 + g) * 2
                    st_u16(at, numba.uint16(pack_bf16x2(y, float32(0))))

    return store


def _copy_group(columns: int):
    """Start copying 64 k of `columns` tokens to shared memory, 16-byte chunks XOR-swizzled by the row; zeros
    where there is no token or no group."""
    pieces = columns * 8 // (ROWS * 2)

    @device
    def copy(to, x, group, present, token0, tokens, x_ld, thread):
        chunk, line = int32(thread & 7), int32(thread >> 3)
        to = int32(to + line * 128 + ((chunk ^ (line & 7)) << 4))
        column = int64(group if present else 0) * 64 + chunk * 8
        for k in range(pieces):
            row = int32(token0 + line + k * 32)
            at = x + (int64(min(row, tokens - 1)) * x_ld + column) * 2
            cp_async16(int32(to + k * 4096), at, int32(16 if row < tokens and present else 0))

    return copy


def _mma(columns: int):
    """acc += A[16,64] B[columns,64]^T of one warp by mma.sync; B at a shared address, rows of 128 swizzled
    bytes."""
    pairs = columns // 16

    @device
    def multiply(acc, a, first, at, lane):
        row = int32((lane & 7) + ((lane >> 4) << 3))
        half = int32((lane >> 3) & 1)
        for s in range(4):
            chunk = int32((int32(2 * s + half) ^ (row & 7)) << 4)
            f = first + s * 4
            for j in range(pairs):
                b = ldmatrix4(int32(at + (j * 16 + row) * 128 + chunk))
                for h in range(2):
                    o = j * 8 + h * 4
                    r = mma_bf16(
                        a[f], a[f + 1], a[f + 2], a[f + 3], b[h * 2], b[h * 2 + 1],
                        acc[o], acc[o + 1], acc[o + 2], acc[o + 3],
                    )  # fmt: skip
                    acc[o] = r[0]
                    acc[o + 1] = r[1]
                    acc[o + 2] = r[2]
                    acc[o + 3] = r[3]

    @device
    def settle(acc):
        pass

    return multiply, settle


def _wgmma(columns: int):
    """The same of four warps, 64 rows, by wgmma; it ends at the next settle."""
    wgmma_k64 = wgmma.multiply(columns)

    @device
    def multiply(acc, a, first, at, lane):
        wgmma_k64(acc, a, int64(first), int64(wgmma.DESCRIPTOR) | int64(at >> 4))

    return multiply, wgmma.settle(columns)


def spec(decoder: str, columns: int, engine: str, gated: bool, name: str) -> KernelSpec:
    return KernelSpec(
        f"linear{'_glu' * gated}_many_{name}_t{columns}_{engine}",
        f"{__name__}:many_rows",
        (("decoder", decoder), ("columns", columns), ("engine", engine), ("gated", gated)),
        block=(ROWS * 2, 1, 1),
        shared=STAGES[engine] * GROUPS * columns * 128 + (1024 if engine == "wgmma" else 0),
        variant="a" if engine == "wgmma" else "",
        only_sm=(90,) if engine == "wgmma" else tuple(sm for sm in TARGETS if sm != 90),
        early=True,
    )
