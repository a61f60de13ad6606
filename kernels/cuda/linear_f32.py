"""Matmul in f32: out[T,N] = x[T,K] W[N,K]^T with FMA, for the f32 mode that checks and tiny models run in.

One warp owns one output row (a gate and an up row when gated) for up to 8 tokens; lane l sums k = 4l..4l+3,
4l+128.. in order and a butterfly adds the lanes, so a row's bits do not depend on how many rows there are.
"""

from numba import cuda, float32, int32, int64

from . import activation
from .build import KernelSpec
from .ptx import (
    device,
    fma_rn,
    grid_wait,
    launch_dependents,
    ld_f32,
    ld_f32x4,
    ld_nc_f32x4,
    shuffle_xor,
    st_f32,
)

TOKENS = 8
WARPS = 4


@device
def _dot4(w, x, total):
    total = fma_rn(w[0], x[0], total)
    total = fma_rn(w[1], x[1], total)
    total = fma_rn(w[2], x[2], total)
    return fma_rn(w[3], x[3], total)


@device
def _warp_sum(v):
    v += shuffle_xor(v, int32(16))
    v += shuffle_xor(v, int32(8))
    v += shuffle_xor(v, int32(4))
    v += shuffle_xor(v, int32(2))
    return v + shuffle_xor(v, int32(1))


def f32_rows(gated: bool):
    """Arguments: out, x, W, bias, T, N, K, x and out row lengths, mode as in linear_few. K is a multiple of
    4."""

    def linear_f32(out, x, w, bias, tokens, n, k, x_ld, out_ld, mode):
        lane = int32(cuda.threadIdx.x & 31)
        row = int32(cuda.blockIdx.x * WARPS + (cuda.threadIdx.x >> 5))
        token0 = int32(cuda.blockIdx.y * TOKENS)
        launch_dependents()
        grid_wait()
        if row >= n:
            return
        first = row
        if gated:
            first = int32((row >> 3) * 16 + (row & 7))
        acc = cuda.local.array(TOKENS, float32)
        ups = cuda.local.array(TOKENS, float32)
        for j in range(TOKENS):
            acc[j] = float32(0)
            ups[j] = float32(0)
        at = int32(lane * 4)
        while at < k:
            a = ld_nc_f32x4(w + (int64(first) * k + at) * 4)
            b = a
            if gated:
                b = ld_nc_f32x4(w + (int64(first + 8) * k + at) * 4)
            for j in range(TOKENS):
                if token0 + j < tokens:
                    v = ld_f32x4(x + (int64(token0 + j) * x_ld + at) * 4)
                    acc[j] = _dot4(a, v, acc[j])
                    if gated:
                        ups[j] = _dot4(b, v, ups[j])
            at = int32(at + 128)
        for j in range(TOKENS):
            y = _warp_sum(acc[j])
            if gated:
                y = activation.glu(y, _warp_sum(ups[j]), mode)
            if lane == 0 and token0 + j < tokens:
                to = out + (int64(token0 + j) * out_ld + row) * 4
                if bias != 0:
                    y += ld_f32(bias + int64(row) * 4)
                if mode == 1 and not gated:
                    y += ld_f32(to)
                st_f32(to, y)

    return linear_f32, "i64 i64 i64 i64 i32 i32 i32 i32 i32 i32"


def spec(gated: bool) -> KernelSpec:
    return KernelSpec(
        f"linear{'_glu' * gated}_f32",
        f"{__name__}:f32_rows",
        (("gated", gated),),
        block=(WARPS * 32, 1, 1),
        early=True,
    )
