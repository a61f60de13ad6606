"""Many-row matmul: out[T,N] = x[T,K] W[N,K]^T for more than 32 tokens, bound by the tensor cores.

A block owns 128 output rows and a tile of tokens. Weights go from global memory straight into A fragments (their
order on the device is fragment order, each warp owns its 16 rows, so nothing is decoded twice); tokens go through
shared memory by cp.async, 64 k a stage, 16-byte chunks XOR-swizzled. The K schedule is linear_few's: k16 steps in
order, one f32 sum for each of CHUNKS chunks of K, the sums added in chunk order at the borders. mma.sync and wgmma
give the same bits for the same sixteen k's a step, so sm_90 may use either.
"""

import numba
from numba import cuda, float32, int32, int64, uint32

from . import activation, wgmma
from .build import KernelSpec, resolve
from .linear_few import CHUNKS
from .ptx import (
    barrier,
    cp_async16,
    cp_async_commit,
    cp_async_wait2,
    device,
    dynamic_shared,
    fence_async_proxy,
    gather,
    ld_f32,
    ldmatrix4,
    mma_bf16,
    pack_bf16x2,
    scatter,
    st_f32,
    st_u16,
)

ROWS = 128
STAGES = 4  # cp_async_wait2 below leaves STAGES - 2 stages in flight


def many_rows(decoder: str, columns: int, engine: str, epilogue: str):
    """Kernel for tiles of `columns` tokens; `engine` "mma" or "wgmma"; epilogue as in linear_few.
    Arguments: out, x, four planes, bias, T, N, 64-k groups, x and out row lengths, row tiles."""
    source = resolve(decoder)
    fetch, unpack, raw = source.fetch, source.unpack, source.raw
    take, put, put_fragments = gather(raw), scatter(raw), scatter(16)
    sums, tiles = columns // 2, columns // 8
    stage = columns * 128
    pieces = columns * 8 // (ROWS * 2)
    multiply = _multiply_wgmma(columns) if engine == "wgmma" else _multiply_mma(columns)
    slack = 1023 if engine == "wgmma" else 0
    gated = epilogue in activation.GLU
    glu = activation.GLU.get(epilogue)
    adds = epilogue == "add"

    def linear_many(out, x, p0, p1, p2, p3, bias, tokens, n, groups, x_ld, out_ld, row_tiles):
        thread = int32(cuda.threadIdx.x)
        lane, warp = int32(thread & 31), int32(thread >> 5)
        g, t = int32(lane >> 2), int32(lane & 3)
        tile_row = int32(cuda.blockIdx.y * 8 + warp)
        token0 = int32(cuda.blockIdx.x * columns)
        tile = int64(min(tile_row, row_tiles - 1)) * groups
        shared = int32(int32(dynamic_shared() + slack) & int32(~slack))
        chunk, line = int32(thread & 7), int32(thread >> 3)
        to = int32(line * 128 + ((chunk ^ (line & 7)) << 4))
        acc = cuda.local.array(sums, float32)
        total = cuda.local.array(sums, float32)
        weights = cuda.local.array(raw, uint32)
        a = cuda.local.array(16, uint32)
        for j in range(sums):
            acc[j] = float32(0)
            total[j] = float32(0)
        for s in range(STAGES - 1):
            if s < groups:
                for i in range(pieces):
                    row = int32(token0 + line + i * 32)
                    at = x + (int64(min(row, tokens - 1)) * x_ld + s * 64 + chunk * 8) * 2
                    cp_async16(int32(shared + s * stage + to + i * 4096), at, int32(16 if row < tokens else 0))
            cp_async_commit()
        put(weights, 0, fetch(p0, p1, p2, p3, tile, lane))
        span = int32((groups + CHUNKS - 1) // CHUNKS)
        left = span
        slot = int32(0)
        fill = int32(STAGES - 1)
        for i in range(groups):
            put_fragments(a, 0, unpack(take(weights, 0), lane))
            if i + 1 < groups:
                put(weights, 0, fetch(p0, p1, p2, p3, tile + i + 1, lane))
            cp_async_wait2()
            if engine == "wgmma":
                fence_async_proxy()
            barrier()
            if i + STAGES - 1 < groups:
                for k in range(pieces):
                    row = int32(token0 + line + k * 32)
                    at = x + (int64(min(row, tokens - 1)) * x_ld + (int64(i) + STAGES - 1) * 64 + chunk * 8) * 2
                    cp_async16(
                        int32(shared + fill * stage + to + k * 4096), at, int32(16 if row < tokens else 0)
                    )
            cp_async_commit()
            multiply(acc, a, int32(shared + slot * stage), lane)
            slot = int32((slot + 1) % STAGES)
            fill = int32((fill + 1) % STAGES)
            left = int32(left - 1)
            if left == 0 or i == groups - 1:
                left = span
                for j in range(sums):
                    total[j] += acc[j]
                    acc[j] = float32(0)
        if tile_row < row_tiles:
            for c in range(tiles):
                for h in range(2):
                    token = int32(token0 + c * 8 + 2 * t + h)
                    if token < tokens:
                        if gated:
                            packed = pack_bf16x2(glu(total[c * 4 + h], total[c * 4 + 2 + h]), float32(0))
                            at = out + (int64(token) * out_ld + tile_row * 8 + g) * 2
                            st_u16(at, numba.uint16(packed))
                        else:
                            for v in range(2):
                                row = int32(tile_row * 16 + g + v * 8)
                                if row < n:
                                    y = total[c * 4 + v * 2 + h]
                                    at = out + (int64(token) * out_ld + row) * 4
                                    if bias != 0:
                                        y += ld_f32(bias + int64(row) * 4)
                                    if adds:
                                        y += ld_f32(at)
                                    st_f32(at, y)

    return linear_many, "i64 i64 i64 i64 i64 i64 i64 i32 i32 i32 i32 i32 i32"


def _multiply_mma(columns: int):
    """acc += A[16,64] B[columns,64]^T of one warp by mma.sync; B at a shared address, rows of 128 swizzled bytes."""
    pairs = columns // 16

    @device
    def multiply(acc, a, at, lane):
        row = int32((lane & 7) + ((lane >> 4) << 3))
        half = int32((lane >> 3) & 1)
        for s in range(4):
            chunk = int32((int32(2 * s + half) ^ (row & 7)) << 4)
            for j in range(pairs):
                b = ldmatrix4(int32(at + (j * 16 + row) * 128 + chunk))
                for h in range(2):
                    o = j * 8 + h * 4
                    r = mma_bf16(
                        a[s * 4], a[s * 4 + 1], a[s * 4 + 2], a[s * 4 + 3], b[h * 2], b[h * 2 + 1],
                        acc[o], acc[o + 1], acc[o + 2], acc[o + 3],
                    )  # fmt: skip
                    acc[o] = r[0]
                    acc[o + 1] = r[1]
                    acc[o + 2] = r[2]
                    acc[o + 3] = r[3]

    return multiply


def _multiply_wgmma(columns: int):
    """The same of four warps, 64 rows, by wgmma."""
    wgmma_k64 = wgmma.multiply(columns)

    @device
    def multiply(acc, a, at, lane):
        wgmma_k64(acc, a, int64(wgmma.DESCRIPTOR) | int64(at >> 4))

    return multiply


def spec(decoder: str, columns: int, engine: str, epilogue: str, name: str) -> KernelSpec:
    return KernelSpec(
        f"linear_many_{name}_{epilogue}_t{columns}_{engine}",
        f"{__name__}:many_rows",
        (("decoder", decoder), ("columns", columns), ("engine", engine), ("epilogue", epilogue)),
        block=(ROWS * 2, 1, 1),
        shared=STAGES * columns * 128 + (1024 if engine == "wgmma" else 0),
        variant="a" if engine == "wgmma" else "",
        only_sm=(90,) if engine == "wgmma" else (),
    )
