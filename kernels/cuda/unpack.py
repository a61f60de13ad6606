"""A packed weight as a plain bf16 matrix, by the format's own device decoder: how tests see what a matmul
sees.

One warp a tile of 16 x 64. Bytes moved: the planes once, 2 bytes a weight written.
"""

from numba import cuda, int32, int64, uint32

from .build import KernelSpec, resolve
from .launch import Library
from .ptx import scatter, st32

WARPS = 4


def unpack_kernel(decoder: str):
    """Arguments: out bf16 [Np,Kp], four planes, tiles, 64-k groups of a row."""
    source = resolve(decoder)
    fetch, unpack = source.fetch, source.unpack
    put = scatter(16)

    def unpack_weight(out, p0, p1, p2, p3, tiles, groups):
        lane = int32(cuda.threadIdx.x & 31)
        tile = int64(cuda.blockIdx.x) * WARPS + int64(cuda.threadIdx.x >> 5)
        if tile >= tiles:
            return
        a = cuda.local.array(16, uint32)
        put(a, 0, unpack(fetch(p0, p1, p2, p3, tile, lane), lane))
        row0 = tile // groups * 16 + int64(lane >> 2)
        column0 = tile % groups * 64 + int64(lane & 3) * 2
        for s in range(4):
            for j in range(4):
                row, column = row0 + 8 * (j & 1), column0 + 16 * s + 8 * (j >> 1)
                st32(out + (row * groups * 64 + column) * 2, a[s * 4 + j])

    return unpack_weight, "i64 i64 i64 i64 i64 i64 i64"


def spec(decoder: str, name: str) -> KernelSpec:
    params = (("decoder", decoder),)
    return KernelSpec(f"unpack_{name}", f"{__name__}:unpack_kernel", params, block=(WARPS * 32, 1, 1))


def catalog(decoders: dict[str, str]) -> list[KernelSpec]:
    return [spec(decoder, name) for name, decoder in decoders.items()]


class Unpack:
    """`unpack(stream, out, weight)`: out bf16 [N to 16, K to 64] of a packed weight."""

    def __init__(self, library: Library) -> None:
        self.library = library

    def __call__(self, stream: int, out, weight) -> None:
        planes = [plane.ptr for plane in weight.planes] + [0] * (4 - len(weight.planes))
        groups = -(-weight.k // 64)
        tiles = -(-weight.n // 16) * groups
        kernel = self.library.function(spec(weight.format.decoder, weight.format.kernel_name))
        kernel(stream, (-(-tiles // WARPS), 1, 1), out.ptr, *planes, tiles, groups)

    @staticmethod
    def bytes(weight_bytes: int, n: int, k: int) -> int:
        return weight_bytes + 2 * n * k
