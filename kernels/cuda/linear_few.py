"""Few-row matmul: out[T,N] = x[T,K] W[N,K]^T for up to 16 tokens, bound by the reading of W.

Weights are the A operand of mma.sync (16 output rows), tokens its 8 columns, so arithmetic is free and eight
rows cost what one does. A block owns 16 rows; its 8 warps own the 8 chunks of K (CHUNKS, fixed for a given
K), each with its own f32 sum; the sums are added in chunk order. That is the K schedule of every matmul here:
see linear_many. Weights lie in fragment order (16 x 64 tiles): a lane's loads are its own registers, a warp's
are contiguous.
"""

import numba
from numba import cuda, float32, int32, int64, uint32

from . import activation
from .build import KernelSpec, resolve
from .ptx import (
    barrier,
    dynamic_shared,
    gather,
    grid_wait,
    launch_dependents,
    ld_f32,
    ld_nc32,
    lds_f32,
    mma_bf16,
    pack_bf16x2,
    scatter,
    st_f32,
    st_u16,
    sts_f32,
)

CHUNKS = 8  # the K schedule: K is summed in 8 chunks of whole 64-k groups, added in order
WARPS = CHUNKS
MAX_TOKENS = 16


def few_rows(decoder: str, tiles: int, ahead: int, gated: bool):
    """Kernel for `tiles` groups of 8 tokens; `ahead`: weight tiles in flight a warp. Arguments: out, x, four
    planes, bias (0: none), T, N, 64-k groups, x and out row lengths, mode: of a gated one its activation,
    else 1 to add."""
    source = resolve(decoder)
    fetch, unpack, raw = source.fetch, source.unpack, source.raw
    take, put, put_fragments = gather(raw), scatter(raw), scatter(16)
    ring = ahead * raw
    sums, columns = tiles * 4, tiles * 8

    def linear_few(out, x, p0, p1, p2, p3, bias, tokens, n, groups, x_ld, out_ld, mode):
        thread = int32(cuda.threadIdx.x)
        lane, warp = int32(thread & 31), int32(thread >> 5)
        g, t = int32(lane >> 2), int32(lane & 3)
        tile_row = int32(cuda.blockIdx.x)
        span = int32((groups + CHUNKS - 1) // CHUNKS)
        first = int32(warp * span)
        count = int32(min(span, groups - first))
        tile = int64(tile_row) * groups + first
        x_at = x + (int64(g) * x_ld + int64(first) * 64 + 2 * t) * 2
        weights = cuda.local.array(ring, uint32)
        a = cuda.local.array(16, uint32)
        acc = cuda.local.array(sums, float32)
        for j in range(sums):
            acc[j] = float32(0)
        for d in range(ahead):
            if d < count:
                put(weights, d * raw, fetch(p0, p1, p2, p3, tile + d, lane))
        launch_dependents()
        grid_wait()  # weights do not depend on earlier kernels: the first are on their way by now
        i = int32(0)
        while i < count:
            for d in range(ahead):
                if i + d < count:
                    put_fragments(a, 0, unpack(take(weights, d * raw), lane))
                    if i + d + ahead < count:
                        put(weights, d * raw, fetch(p0, p1, p2, p3, tile + i + d + ahead, lane))
                    at = x_at + int64(i + d) * 128
                    for c in range(tiles):
                        present = g + c * 8 < tokens
                        row = at + int64(c) * 16 * x_ld
                        for s in range(4):
                            b0 = uint32(0)
                            b1 = uint32(0)
                            if present:
                                b0 = ld_nc32(row + s * 32)
                                b1 = ld_nc32(row + s * 32 + 16)
                            r = mma_bf16(
                                a[s * 4], a[s * 4 + 1], a[s * 4 + 2], a[s * 4 + 3], b0, b1,
                                acc[c * 4], acc[c * 4 + 1], acc[c * 4 + 2], acc[c * 4 + 3],
                            )  # fmt: skip
                            acc[c * 4] = r[0]
                            acc[c * 4 + 1] = r[1]
                            acc[c * 4 + 2] = r[2]
                            acc[c * 4 + 3] = r[3]
            i = int32(i + ahead)
        shared = dynamic_shared()
        mine = int32(shared + warp * (columns * 64))
        for c in range(tiles):
            at32 = int32(mine + ((c * 8 + 2 * t) * 16 + g) * 4)
            sts_f32(at32, acc[c * 4])
            sts_f32(int32(at32 + 64), acc[c * 4 + 1])
            sts_f32(int32(at32 + 32), acc[c * 4 + 2])
            sts_f32(int32(at32 + 96), acc[c * 4 + 3])
        barrier()
        for k in range((columns * 16 + WARPS * 32 - 1) // (WARPS * 32)):
            e = int32(k * (WARPS * 32) + thread)
            r16 = int32(e & 15)
            token = int32(e >> 4)
            row_n = int32(tile_row * 16 + r16)
            if token < tokens and row_n < n and token < columns:
                y = float32(0)
                for w in range(WARPS):
                    y += lds_f32(int32(shared + w * (columns * 64) + e * 4))
                if gated:
                    if r16 < 8:
                        up = float32(0)
                        for w in range(WARPS):
                            up += lds_f32(int32(shared + w * (columns * 64) + e * 4 + 32))
                        packed = pack_bf16x2(activation.glu(y, up, mode), float32(0))
                        at64 = out + (int64(token) * out_ld + tile_row * 8 + r16) * 2
                        st_u16(at64, numba.uint16(packed))
                else:
                    if bias != 0:
                        y += ld_f32(bias + int64(row_n) * 4)
                    at64 = out + (int64(token) * out_ld + row_n) * 4
                    if mode == 1:
                        y += ld_f32(at64)
                    st_f32(at64, y)

    return linear_few, "i64 i64 i64 i64 i64 i64 i64 i32 i32 i32 i32 i32 i32"


def spec(decoder: str, raw: int, tiles: int, gated: bool, name: str, deep: bool = False) -> KernelSpec:
    """`raw`: registers a weight tile takes in a lane. Up to 256 bytes a lane are kept in flight."""
    ahead = min(4, (64 if deep else 32) // raw)
    return KernelSpec(
        f"linear{'_glu' * gated}_few_{name}_t{tiles * 8}{'_deep' * deep}",
        f"{__name__}:few_rows",
        (("decoder", decoder), ("tiles", tiles), ("ahead", ahead), ("gated", gated)),
        block=(WARPS * 32, 1, 1),
        shared=WARPS * tiles * 512,
        max_registers=128 if tiles == 1 else 144,
        early=True,
    )
