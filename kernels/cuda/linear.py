"""Matmuls over weights of any format: which kernel serves a call, and how it is launched.

The choice depends on the number of rows alone and never on bits: all kernels of a format share one K schedule
(linear_few's docstring). Bytes moved: the weight's planes once, x and out once.
"""

from . import activation, linear_f32, linear_few, linear_many
from .build import KernelSpec, resolve
from .launch import Library

WIDE = 128  # token tile of the many-row kernel; NARROW where fewer rows would leave most of it empty
NARROW = 64
DEEP = 16  # registers of a weight tile from which twice as many in flight are worth a third of the blocks


def specs(decoder: str, name: str, sm: int, gated: tuple[bool, ...] = (False, True)) -> list[KernelSpec]:
    """Every kernel that may run for a format whose device decoder is at `decoder` ("module:function")."""
    raw = resolve(decoder).raw
    out = []
    for g in gated:
        out += [linear_few.spec(decoder, raw, tiles, g, name) for tiles in (1, 2)]
        if raw >= DEEP:
            out.append(linear_few.spec(decoder, raw, 1, g, name, deep=True))
        out += [linear_many.spec(decoder, c, _engine(sm), g, name) for c in (NARROW, WIDE)]
    return out


def catalog(decoders: dict[str, str]) -> list[KernelSpec]:
    """All matmul kernels of all formats ({format name: decoder path}) for any target."""
    out = [linear_f32.spec(gated) for gated in (False, True)]
    for name, decoder in decoders.items():
        out += dict.fromkeys(specs(decoder, name, 90) + specs(decoder, name, 80))
    return out


def few_is_faster(tokens: int, n: int) -> bool:
    """Measured on an H200 in bf16: from 9 tokens on the many-row kernel wins where N gives it blocks
    enough."""
    return tokens <= 8 or (tokens <= linear_few.MAX_TOKENS and n < 16384)


def _engine(sm: int) -> str:
    return "wgmma" if sm == 90 else "mma"


class Linear:
    """`linear(stream, out, x, weight, bias, add)` and `linear.glu(stream, out, x, weight, act)`.

    Tensors are anything with .ptr, .shape and .ld; a weight has .n, .k, .format (.name, .decoder) and
    .planes, or .dense, an f32 matrix, in f32 mode. out: f32 [T,N] (glu: act [T,I]); x: act [T,K]; bias: f32
    [N] or None.
    """

    def __init__(self, library: Library, processors: int) -> None:
        self.library, self.processors = library, processors
        self.kernels: dict[tuple, object] = {}

    def __call__(self, stream: int, out, x, weight, bias=None, *, add: bool = False) -> None:
        self._launch(stream, out, x, weight, bias, False, int(add))

    def glu(self, stream: int, out, x, weight, act: str) -> None:
        self._launch(stream, out, x, weight, None, True, activation.ACTIVATIONS.index(act))

    def _launch(self, stream: int, out, x, weight, bias, gated: bool, mode: int) -> None:
        tokens, n, bias_at = x.shape[0], weight.n, bias.ptr if bias is not None else 0
        assert x.shape[1] == weight.k, (x.shape, weight.n, weight.k)
        if weight.dense is not None:
            rows = n // 2 if gated else n
            grid = (-(-rows // linear_f32.WARPS), -(-tokens // linear_f32.TOKENS), 1)
            kernel = self._kernel(("f32", gated), lambda: linear_f32.spec(gated))
            args = (weight.dense.ptr, bias_at, tokens, rows, weight.k, x.ld, out.ld, mode)
            kernel(stream, grid, out.ptr, x.ptr, *args)
            return
        planes = [p.ptr for p in weight.planes] + [0] * (4 - len(weight.planes))
        groups, row_tiles = -(-weight.k // 64), -(-n // 16)
        source, name = weight.format.decoder, weight.format.kernel_name
        args = (*planes, bias_at, tokens, n, groups, x.ld, out.ld, mode)
        if few_is_faster(tokens, n):
            raw, tiles = resolve(source).raw, 1 if tokens <= 8 else 2
            deep = raw >= DEEP and tiles == 1 and row_tiles <= 2 * self.processors
            kernel = self._kernel(
                (source, gated, tiles, deep), lambda: linear_few.spec(source, raw, tiles, gated, name, deep)
            )
            kernel(stream, (row_tiles, 1, 1), out.ptr, x.ptr, *args)
            return
        columns = NARROW if tokens <= NARROW else WIDE
        kernel = self._kernel(
            (source, gated, columns),
            lambda: linear_many.spec(source, columns, _engine(self.library.sm), gated, name),
        )
        token_tiles = -(-tokens // columns)
        beside = min(token_tiles, linear_many.TILES)
        grid = (beside, -(-row_tiles // 8), -(-token_tiles // beside))
        kernel(stream, grid, out.ptr, x.ptr, *args, row_tiles)

    def _kernel(self, key: tuple, make):
        kernel = self.kernels.get(key)
        if kernel is None:
            kernel = self.kernels[key] = self.library.function(make())
        return kernel

    @staticmethod
    def bytes(weight_bytes: int, tokens: int, n: int, k: int) -> int:
        """Bytes read and written by one matmul: planes, bf16 x, f32 out."""
        return weight_bytes + tokens * (2 * k + 4 * n)
