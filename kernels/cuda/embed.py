"""embed: rows of a table, scaled, into the f32 residual stream.

A packed table is read through its format's decoder like any matmul weight: the row of a token lies in four
lanes of each of its D/64 tiles, and only those lanes fetch. One warp a tile, so at one token all tiles are
read at once. Values are the bf16 weights of the matmuls (f32 of a dense table). Bytes moved: the row, about
twice (sectors), out.
"""

from numba import cuda, float32, int32, int64, uint32

from .build import KernelSpec, resolve
from .launch import Library
from .ptx import (
    bf16_hi,
    bf16_lo,
    bits_of_f32,
    device,
    grid_wait,
    launch_dependents,
    ld_i32,
    ld_nc_f32,
    mul_rn,
    scatter,
    st64,
    st_f32,
)

WARPS = 4
THREADS = WARPS * 32
NUMBERS = 4  # a thread of the dense kernel

_put = scatter(16)


@device
def _token(tokens, last, rows, i):
    """The id of place i: tokens[i], or what was sampled last where that is -1; negative: padded."""
    token = ld_i32(tokens + i * 4)
    if token == -1:
        token = ld_i32(last + int64(ld_i32(rows + i * 4)) * 4)
    return token


def packed_rows(decoder: str):
    """Arguments: out, tokens, last, rows, four planes, D, 64-k groups, out's row length, scale."""
    source = resolve(decoder)
    fetch, unpack = source.fetch, source.unpack

    def embed(out, tokens, last, rows, p0, p1, p2, p3, d, groups, out_ld, scale):
        thread = int32(cuda.threadIdx.x)
        lane = int32(thread & 31)
        place = int64(cuda.blockIdx.x)
        group = int32(cuda.blockIdx.y * WARPS + (thread >> 5))
        launch_dependents()
        grid_wait()
        token = _token(tokens, last, rows, place)
        n = int32(max(token, int32(0)))
        if group < groups and (lane >> 2) == (n & 7):
            tile = int64(n >> 4) * groups + group
            pairs = cuda.local.array(16, uint32)
            _put(pairs, 0, unpack(fetch(p0, p1, p2, p3, tile, lane), lane))
            upper = (n & 8) != 0
            first = int32(group * 64 + 2 * (lane & 3))
            for s in range(4):
                for h in range(2):
                    pair = pairs[s * 4 + h * 2]
                    if upper:
                        pair = pairs[s * 4 + h * 2 + 1]
                    if token < 0:
                        pair = uint32(0)
                    low, high = mul_rn(bf16_lo(pair), scale), mul_rn(bf16_hi(pair), scale)
                    k = int32(first + s * 16 + h * 8)
                    if k < d:
                        at = out + (place * out_ld + k) * 4
                        st64(at, bits_of_f32(low), bits_of_f32(high))

    return embed, "i64 i64 i64 i64 i64 i64 i64 i64 i32 i32 i32 f32"


def dense_rows():
    """Arguments: out, tokens, last, rows, table, D, out's row length, scale."""

    def embed(out, tokens, last, rows, table, d, out_ld, scale):
        place = int64(cuda.blockIdx.x)
        first = int32(cuda.blockIdx.y * (THREADS * NUMBERS) + cuda.threadIdx.x)
        launch_dependents()
        grid_wait()
        token = _token(tokens, last, rows, place)
        source = table + int64(max(token, int32(0))) * d * 4
        for u in range(NUMBERS):
            k = int32(first + u * THREADS)
            if k < d:
                value = float32(0)
                if token >= 0:
                    value = mul_rn(ld_nc_f32(source + int64(k) * 4), scale)
                st_f32(out + (place * out_ld + k) * 4, value)

    return embed, "i64 i64 i64 i64 i64 i32 i32 f32"


def spec(decoder: str, name: str) -> KernelSpec:
    params = (("decoder", decoder),)
    return KernelSpec(
        f"embed_{name}", f"{__name__}:packed_rows", params, (THREADS, 1, 1), max_registers=128, early=True
    )


def dense_spec() -> KernelSpec:
    return KernelSpec(
        "embed_dense", f"{__name__}:dense_rows", (), (THREADS, 1, 1), max_registers=40, early=True
    )


def catalog(decoders: dict[str, str]) -> list[KernelSpec]:
    return [dense_spec()] + [spec(decoder, name) for name, decoder in decoders.items()]


class Embed:
    """`embed(stream, out, tokens, last, rows, table, scale)`: out f32 [T,D], tokens i32 [T], last i32 [S],
    rows i32 [T], table a Weight V,D (.planes and .format, or .dense f32 [V,D]). Rows of out are 8-byte
    aligned, D is even."""

    def __init__(self, library: Library) -> None:
        self.library = library
        self.kernels: dict[str, object] = {}

    @staticmethod
    def specs(decoder: str, name: str) -> list[KernelSpec]:
        """For tables of one format; `dense_spec` serves f32 mode."""
        return [spec(decoder, name)]

    def __call__(self, stream: int, out, tokens, last, rows, table, scale: float) -> None:
        t, d = out.shape
        ids = tokens.ptr, last.ptr, rows.ptr
        if table.dense is not None:
            grid = (t, -(-d // (THREADS * NUMBERS)), 1)
            kernel = self._kernel("dense", dense_spec)
            kernel(stream, grid, out.ptr, *ids, table.dense.ptr, d, out.ld, scale)
            return
        assert d % 2 == 0 and out.ld % 2 == 0 and out.ptr % 8 == 0, (out.ptr, d, out.ld)
        source, name = table.format.decoder, table.format.kernel_name
        planes = [p.ptr for p in table.planes] + [0] * (4 - len(table.planes))
        groups = -(-table.k // 64)
        kernel = self._kernel(source, lambda: spec(source, name))
        kernel(stream, (t, -(-groups // WARPS), 1), out.ptr, *ids, *planes, d, groups, out.ld, scale)

    def _kernel(self, key: str, make):
        kernel = self.kernels.get(key)
        if kernel is None:
            kernel = self.kernels[key] = self.library.function(make())
        return kernel

    @staticmethod
    def bytes(tokens: int, d: int, row_bytes: int) -> int:
        """`row_bytes`: of a row of the table. Sectors of 32 bytes make the true traffic some times larger."""
        return tokens * (d * 4 + row_bytes)
