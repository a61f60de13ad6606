"""Root mean square norms of f32 rows: x / sqrt(mean(x^2) + eps) * weight (arXiv 1910.07467).

One block a row; a thread takes four numbers at a time, a block a slab of 4096. The order of the sum depends
on D alone, every operation is rounded as written, and all kernels here share them: a row has the same bits
whatever the other rows are. Bytes moved: x and out once (rmsnorm_add: h twice), weights once a row, mostly
from L2.
"""

from numba import cuda, float32, int32, int64

from .build import KernelSpec
from .launch import Library
from .ptx import (
    add_rn,
    device,
    div_rn,
    dynamic_shared,
    fma_rn,
    gather,
    grid_wait,
    launch_dependents,
    ld_f32x4,
    ld_i32,
    ld_nc_f32x4,
    mul_rn,
    pack_bf16x2,
    scatter,
    sqrt_rn,
    st64,
    st_f32x4,
)
from .reduce import block_sum

THREADS = 256
VECTORS = 4  # 16-byte loads in flight a thread
NUMBERS = VECTORS * 4
STEP = THREADS * 4
SLAB = VECTORS * STEP
ACTS = ("bf16", "f32")
ITEM = {"bf16": 2, "f32": 4}

_sum = block_sum(THREADS // 32)
_put, _take = scatter(4), gather(4)


@device
def _load(to, source, first, d):
    """Numbers first.. of a row, STEP apart in fours, zeros past D."""
    for i in range(VECTORS):
        if first + i * STEP < d:
            _put(to, i * 4, ld_f32x4(source + (int64(first) + i * STEP) * 4))
        else:
            _put(to, i * 4, (float32(0), float32(0), float32(0), float32(0)))


@device
def _load_weight(to, source, first, d):
    """The same of weights, which no kernel writes."""
    for i in range(VECTORS):
        if first + i * STEP < d:
            _put(to, i * 4, ld_nc_f32x4(source + (int64(first) + i * STEP) * 4))
        else:
            _put(to, i * 4, (float32(0), float32(0), float32(0), float32(0)))


@device
def _squares(x, total):
    for i in range(NUMBERS):
        total = fma_rn(x[i], x[i], total)
    return total


@device
def _inverse(total, d, eps, shared, thread):
    """1 / sqrt(mean + eps) of the block's row."""
    mean = div_rn(_sum(total, shared, thread), float32(d))
    return div_rn(float32(1), sqrt_rn(add_rn(mean, eps)))


@device
def _scale(x, w, inverse):
    for i in range(NUMBERS):
        x[i] = mul_rn(mul_rn(x[i], inverse), w[i])


def _store_f32(y, out, first, d):
    for i in range(VECTORS):
        if first + i * STEP < d:
            v = _take(y, i * 4)
            st_f32x4(out + (int64(first) + i * STEP) * 4, v[0], v[1], v[2], v[3])


def _store_bf16(y, out, first, d):
    for i in range(VECTORS):
        if first + i * STEP < d:
            v = _take(y, i * 4)
            at = out + (int64(first) + i * STEP) * 2
            st64(at, pack_bf16x2(v[0], v[1]), pack_bf16x2(v[2], v[3]))


def _add_f32(y, out, first, d):
    for i in range(VECTORS):
        if first + i * STEP < d:
            at = out + (int64(first) + i * STEP) * 4
            v, h = _take(y, i * 4), ld_f32x4(at)
            st_f32x4(at, add_rn(h[0], v[0]), add_rn(h[1], v[1]), add_rn(h[2], v[2]), add_rn(h[3], v[3]))


_STORES = {"bf16": device(_store_bf16), "f32": device(_store_f32), "add": device(_add_f32)}


def rmsnorm_kernel(act: str, picked: bool):
    """`act`: "bf16", "f32", or "add" to f32. `picked`: block b takes row rows[b], zeros where it is negative.
    Arguments: out, x, rows, weight, D, out and x row lengths, eps."""
    store = _STORES[act]
    item = ITEM.get(act, 4)

    def rmsnorm(out, x, rows, weight, d, out_ld, x_ld, eps):
        thread = int32(cuda.threadIdx.x)
        block = int64(cuda.blockIdx.x)
        shared = dynamic_shared()
        first = int32(thread * 4)
        w = cuda.local.array(NUMBERS, float32)
        a = cuda.local.array(NUMBERS, float32)
        _load_weight(w, weight, first, d)
        launch_dependents()
        grid_wait()
        row, length = block, d
        if picked:
            row = int64(ld_i32(rows + block * 4))
            if row < 0:
                row, length = int64(0), int32(0)  # nothing is read: zeros
        target = out + block * out_ld * item
        source = x + row * x_ld * 4
        _load(a, source, first, length)
        total = _squares(a, float32(0))
        b = cuda.local.array(NUMBERS, float32)
        at = int32(first + SLAB)
        while at < length:
            _load(b, source, at, length)
            total = _squares(b, total)
            at = int32(at + SLAB)
        inverse = _inverse(total, d, eps, shared, thread)
        _scale(a, w, inverse)
        store(a, target, first, d)
        at = int32(first + SLAB)
        while at < d:
            _load_weight(w, weight, at, d)
            _load(b, source, at, length)
            _scale(b, w, inverse)
            store(b, target, at, d)
            at = int32(at + SLAB)

    return rmsnorm, "i64 i64 i64 i64 i32 i32 i32 f32"


def spec(act: str, picked: bool = False) -> KernelSpec:
    return KernelSpec(
        f"rmsnorm{'_rows' if picked else ''}_{act}",
        f"{__name__}:rmsnorm_kernel",
        (("act", act), ("picked", picked)),
        block=(THREADS, 1, 1),
        shared=THREADS // 32 * 8,
        max_registers=96,
        early=True,
    )


def catalog() -> list[KernelSpec]:
    return [s for act in ACTS for s in (*RmsNorm.specs(act), *RmsNormRows.specs(act))] + RmsNormAdd.specs()


def _check(out, x, weight) -> int:
    """D, when the tensors can be read sixteen bytes at a time."""
    d = x.shape[-1]
    assert out.shape[-1] == d == weight.shape[-1], (out.shape, x.shape, weight.shape)
    assert d % 4 == 0 and x.ld % 4 == 0 and out.ld % 4 == 0, (d, x.ld, out.ld)
    assert x.ptr % 16 == 0 and weight.ptr % 16 == 0 and out.ptr % 16 == 0, (x.ptr, weight.ptr, out.ptr)
    return d


class RmsNorm:
    """`rmsnorm(stream, out, x, weight, eps)`: out act [T,D], x f32 [T,D], weight f32 [D]; D a multiple of 4,
    rows 16-byte aligned."""

    def __init__(self, library: Library, act: str) -> None:
        self.kernel = library.function(spec(act))

    @staticmethod
    def specs(act: str) -> list[KernelSpec]:
        return [spec(act)]

    def __call__(self, stream: int, out, x, weight, eps: float) -> None:
        d = _check(out, x, weight)
        self.kernel(stream, (x.shape[0], 1, 1), out.ptr, x.ptr, 0, weight.ptr, d, out.ld, x.ld, eps)

    @staticmethod
    def bytes(tokens: int, d: int, act: str) -> int:
        return tokens * d * (4 + ITEM[act]) + d * 4


class RmsNormRows:
    """`rmsnorm_rows(stream, out, x, rows, weight, eps)`: out act [B,D] of x[rows[b]], x f32 [T,D], rows i32
    [B]; zeros where rows[b] is negative."""

    def __init__(self, library: Library, act: str) -> None:
        self.kernel = library.function(spec(act, picked=True))

    @staticmethod
    def specs(act: str) -> list[KernelSpec]:
        return [spec(act, picked=True)]

    def __call__(self, stream: int, out, x, rows, weight, eps: float) -> None:
        d = _check(out, x, weight)
        grid = (rows.shape[0], 1, 1)
        self.kernel(stream, grid, out.ptr, x.ptr, rows.ptr, weight.ptr, d, out.ld, x.ld, eps)

    @staticmethod
    def bytes(rows: int, d: int, act: str) -> int:
        return RmsNorm.bytes(rows, d, act)


class RmsNormAdd:
    """`rmsnorm_add(stream, h, x, weight, eps)`: h f32 [T,D] += norm of x f32 [T,D]."""

    def __init__(self, library: Library) -> None:
        self.kernel = library.function(spec("add"))

    @staticmethod
    def specs() -> list[KernelSpec]:
        return [spec("add")]

    def __call__(self, stream: int, h, x, weight, eps: float) -> None:
        d = _check(h, x, weight)
        self.kernel(stream, (x.shape[0], 1, 1), h.ptr, x.ptr, 0, weight.ptr, d, h.ld, x.ld, eps)

    @staticmethod
    def bytes(tokens: int, d: int) -> int:
        return tokens * d * 12 + d * 4
