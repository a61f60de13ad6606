"""rope_kv: splits the projected rows, norms and rotates q and k heads, and writes q and the cache.

One warp a head; lane l holds elements l, l+32, ... of the head, so pairs (i, i + R/2) meet through shared
memory. Norms and rotations are f32 in explicit roundings; one rounding to the act type at the end.
Bytes moved: qkv (f32) once, q, k and v (act) once.
"""

from numba import cuda, float32, int32, int64, uint16

from .build import KernelSpec
from .launch import Library
from .ptx import (
    add_rn,
    device,
    div_rn,
    dynamic_shared,
    fma_rn,
    grid_wait,
    launch_dependents,
    ld_f32,
    ld_i32,
    ld_nc_f32,
    lds_f32,
    mul_rn,
    pack_bf16x2,
    sqrt_rn,
    st_f32,
    st_u16,
    sts_f32,
    sub_rn,
    warp_barrier,
)
from .reduce import warp_sum

WARPS = 4
PAGE = 64
ACTS = ("bf16", "f32")


def rope_kernel(dim: int, act: str):
    """Arguments: q, keys, values, qkv, cos_sin, positions, slots, q_norm and k_norm (0: none), H, G, R, row
    lengths of qkv and cos_sin, eps."""
    count = (dim + 31) // 32
    size = 2 if act == "bf16" else 4
    store = device(_store_bf16 if act == "bf16" else _store_f32)
    ragged = dim % 32 != 0

    def rope_kv(
        q, keys, values, qkv, cos_sin, positions, slots, q_norm, k_norm, heads, groups, r, row, turn, eps
    ):
        lane, warp = int32(cuda.threadIdx.x & 31), int32(cuda.threadIdx.x >> 5)
        t = int64(cuda.blockIdx.x)
        launch_dependents()
        grid_wait()
        position = ld_i32(positions + t * 4)
        slot = ld_i32(slots + t * 4)
        page, offset = int64(slot >> 6), int64(slot & 63)
        angles = cos_sin + int64(position) * turn * 4
        half = int32(r >> 1)
        mine = int32(dynamic_shared() + warp * (dim * 4))
        x = cuda.local.array(count, float32)
        head = int32(cuda.blockIdx.y * WARPS + warp)
        if head < heads + 2 * groups:
            at = qkv + (t * row + int64(head) * dim) * 4
            for i in range(count):
                e = int32(lane + i * 32)
                x[i] = float32(0)
                if not ragged or e < dim:
                    x[i] = ld_f32(at + int64(e) * 4)
            norm = q_norm if head < heads else k_norm
            if head < heads + groups:
                if norm != 0:
                    squares = float32(0)
                    for i in range(count):
                        squares = fma_rn(x[i], x[i], squares)
                    mean = div_rn(warp_sum(squares), float32(dim))
                    inverse = div_rn(float32(1), sqrt_rn(add_rn(mean, eps)))
                    for i in range(count):
                        e = int32(lane + i * 32)
                        if not ragged or e < dim:
                            x[i] = mul_rn(mul_rn(x[i], inverse), ld_nc_f32(norm + int64(e) * 4))
                for i in range(count):
                    e = int32(lane + i * 32)
                    if not ragged or e < dim:
                        sts_f32(int32(mine + e * 4), x[i])
                warp_barrier()
                for i in range(count):
                    e = int32(lane + i * 32)
                    if e < r:
                        low = e < half
                        pair = int32(e if low else e - half)
                        cos = ld_nc_f32(angles + int64(pair) * 4)
                        sin = ld_nc_f32(angles + int64(pair + half) * 4)
                        other = lds_f32(int32(mine + (e + half if low else e - half) * 4))
                        turned = mul_rn(other, sin)
                        x[i] = sub_rn(mul_rn(x[i], cos), turned) if low else add_rn(mul_rn(x[i], cos), turned)
                warp_barrier()
            to = q + (t * heads + int64(head)) * (dim * size)
            if head >= heads:
                g = int64(head - heads if head < heads + groups else head - heads - groups)
                cache = keys if head < heads + groups else values
                to = cache + ((page * groups + g) * PAGE + offset) * (dim * size)
            if head < heads or slot >= 0:
                for i in range(count):
                    e = int32(lane + i * 32)
                    if not ragged or e < dim:
                        store(to + int64(e) * size, x[i])

    return rope_kv, "i64 i64 i64 i64 i64 i64 i64 i64 i64 i32 i32 i32 i32 i32 f32"


def _store_bf16(at, v):
    st_u16(at, uint16(pack_bf16x2(v, float32(0))))


def _store_f32(at, v):
    st_f32(at, v)


def spec(dim: int, act: str) -> KernelSpec:
    return KernelSpec(
        f"rope_kv_e{dim}_{act}",
        f"{__name__}:rope_kernel",
        (("dim", dim), ("act", act)),
        block=(WARPS * 32, 1, 1),
        shared=WARPS * dim * 4,
        early=True,
    )


def catalog() -> list[KernelSpec]:
    """Common head sizes; others are built when a model has them."""
    return [spec(dim, act) for dim in (64, 128, 256) for act in ACTS] + [spec(8, "f32"), spec(16, "f32")]


class RopeKv:
    """`rope_kv(stream, q, keys, values, qkv, cos_sin, positions, slots, q_norm, k_norm, eps)`: see
    contract.py."""

    def __init__(self, library: Library, act: str) -> None:
        self.library, self.act = library, act

    def __call__(
        self, stream: int, q, keys, values, qkv, cos_sin, positions, slots, q_norm, k_norm, eps: float
    ) -> None:
        tokens, heads, dim = q.shape
        norms = [0 if norm is None else norm.ptr for norm in (q_norm, k_norm)]
        groups = keys.shape[1]
        grid = (tokens, -(-(heads + 2 * groups) // WARPS), 1)
        self.library.function(spec(dim, self.act))(
            stream, grid, q.ptr, keys.ptr, values.ptr, qkv.ptr, cos_sin.ptr, positions.ptr, slots.ptr, *norms,
            heads, groups, cos_sin.shape[1], qkv.ld, cos_sin.ld, eps,
        )  # fmt: skip

    @staticmethod
    def bytes(tokens: int, heads: int, kv_heads: int, dim: int, act_bytes: int) -> int:
        return tokens * (heads + 2 * kv_heads) * dim * (4 + act_bytes)
