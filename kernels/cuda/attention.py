"""attention on the device: which kernel serves a step. All of them compute the same fold over pages, bit for
bit."""

from . import attention_decode, attention_f32, attention_prefill
from .attention_decode import ROWS
from .build import KernelSpec
from .launch import Library

LOG2E = 1.4426950408889634
DIMS = (64, 128, 256)


def catalog() -> list[KernelSpec]:
    """Common head sizes; others are built when a model has them. Heads above 128 have a form for small shared
    memory."""
    found = [attention_f32.spec(dim) for dim in (8, 16, *DIMS)]
    for dim in DIMS:
        found += [attention_decode.split_spec(dim), attention_decode.merge_spec(dim)]
        found += dict.fromkeys(attention_prefill.spec(dim, sm) for sm in (80, 86))
    return found


def scratch_bytes(pages: int, heads: int, dim: int) -> int:
    """Bytes of scratch for a cache of `pages` pages."""
    return pages * heads * (dim + 4) * 4


class Attention:
    """`attention(stream, out, q, keys, values, page_table, q_start, kv_len, scale, window)`: see contract.py.

    `scratch`: address of scratch_bytes, for bf16."""

    def __init__(self, library: Library, act: str, scratch: int = 0) -> None:
        self.library, self.act, self.scratch = library, act, scratch

    @staticmethod
    def specs(dim: int, act: str, sm: int) -> list[KernelSpec]:
        """Kernels for one head size."""
        if act == "f32":
            return [attention_f32.spec(dim)]
        decode = [attention_decode.split_spec(dim), attention_decode.merge_spec(dim)]
        return [*decode, attention_prefill.spec(dim, sm)]

    def __call__(
        self, stream: int, out, q, keys, values, page_table, q_start, kv_len, scale: float, window: int
    ) -> None:
        tokens, heads, dim = q.shape
        batch, groups = kv_len.shape[0], keys.shape[1]
        scaled = float(scale) * LOG2E
        if self.act == "f32":
            self.library.function(attention_f32.spec(dim))(
                stream, (tokens, heads, 1), out.ptr, q.ptr, keys.ptr, values.ptr, page_table.ptr, q_start.ptr,
                kv_len.ptr, heads, groups, batch, page_table.ld, scaled, window,
            )  # fmt: skip
        elif tokens == batch and heads // groups <= ROWS:
            self._decode(stream, out, q, keys, values, page_table, kv_len, scaled, window)
        else:
            rows = (tokens - batch + 1) * (heads // groups)  # most that one sequence can have
            tiles = -(-rows // attention_prefill.ROWS)
            grid = (tiles * attention_prefill.parts_of(dim), groups, batch)
            self.library.function(attention_prefill.spec(dim, self.library.sm))(
                stream, grid, out.ptr, q.ptr, keys.ptr, values.ptr, page_table.ptr, q_start.ptr, kv_len.ptr,
                heads, groups, page_table.ld, scaled, window,
            )  # fmt: skip

    def _decode(self, stream, out, q, keys, values, page_table, kv_len, scaled: float, window: int) -> None:
        batch, heads, dim = q.shape
        groups, width = keys.shape[1], page_table.ld
        blocks = max(1, min(page_table.shape[1], attention_decode.BLOCKS // (batch * groups)))
        self.library.function(attention_decode.split_spec(dim))(
            stream, (blocks, groups, batch), self.scratch, q.ptr, keys.ptr, values.ptr, page_table.ptr,
            kv_len.ptr, heads, groups, width, scaled, window,
        )  # fmt: skip
        self.library.function(attention_decode.merge_spec(dim))(
            stream, (heads, batch, 1), out.ptr, self.scratch, page_table.ptr, kv_len.ptr, heads, width, window
        )

    @staticmethod
    def bytes(batch: int, kv_len: int, kv_heads: int, dim: int) -> int:
        """Keys and values that a decode step reads."""
        return batch * kv_len * kv_heads * dim * 4
