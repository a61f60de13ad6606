"""Attention on a GPU against softmax in float64 over shuffled pages, and its kernels against each other, bit
for bit."""

import harness
import numpy as np
import pytest

from xinfer.tensor import DType

pytestmark = harness.NEEDS_GPU
gpu = pytest.fixture(scope="module")(harness.opened)
PAGE = 64


class Case:
    """Sequences of `lengths` keys in shuffled pages; the last `counts` tokens of each are queries."""

    def __init__(self, gpu, heads: int, groups: int, dim: int, lengths: list[int], counts: list[int]) -> None:
        rng = np.random.default_rng(dim + sum(lengths))
        self.gpu, self.heads, self.groups, self.dim = gpu, heads, groups, dim
        self.lengths, self.counts = lengths, counts
        pages = [-(-n // PAGE) for n in lengths]
        order = rng.permutation(sum(pages) + 3)
        self.table = np.zeros((len(lengths), max(pages)), np.int32)
        at = 0
        for b, count in enumerate(pages):
            self.table[b, :count] = order[at : at + count]
            at += count
        shape = (len(order), groups, PAGE, dim)
        self.keys, self.values = (
            harness.f32(harness.bf16(rng.standard_normal(shape, np.float32))) for _ in "kv"
        )
        self.q = harness.f32(harness.bf16(rng.standard_normal((sum(counts), heads, dim), np.float32)))
        self.bits = {name: harness.bf16(getattr(self, name)) for name in ("keys", "values", "q")}
        self.starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)

    def rows(self, b: int) -> slice:
        return slice(self.starts[b], self.starts[b + 1])

    def run(self, sequences, window: int = 0, act: str = "bf16", first: int = 0, last: int | None = None):
        """Output f32 [T,H,E] of some sequences' queries first..last, each cut alike; its kernel is the
        launcher's choice."""
        from xinfer.kernels.cuda.attention import Attention, scratch_bytes

        put, dtype = self.gpu.put, DType.BF16 if act == "bf16" else DType.F32
        cut = [np.arange(self.starts[b], self.starts[b + 1])[first:last] for b in sequences]
        left = [int(self.starts[b + 1] - 1 - rows[-1]) for b, rows in zip(sequences, cut)]
        starts = np.concatenate([[0], np.cumsum([len(rows) for rows in cut])]).astype(np.int32)
        kv_len = np.array([self.lengths[b] - n for b, n in zip(sequences, left)], np.int32)
        pick = (lambda name: self.bits[name]) if act == "bf16" else (lambda name: getattr(self, name))
        out = self.gpu.empty((starts[-1], self.heads * self.dim), dtype)
        scratch = self.gpu.empty((scratch_bytes(len(self.keys), self.heads, self.dim),), DType.U8)
        Attention(self.gpu.library, act, scratch.ptr)(
            self.gpu.stream, out, put(pick("q")[np.concatenate(cut)], dtype), put(pick("keys"), dtype),
            put(pick("values"), dtype), put(self.table[list(sequences)]), put(starts), put(kv_len),
            self.dim**-0.5, window,
        )  # fmt: skip
        got = self.gpu.get(out).copy()
        self.gpu.clear()
        got = harness.f32(got) if act == "bf16" else got
        return got.reshape(-1, self.heads, self.dim)

    def wanted(self, b: int, window: int = 0) -> np.ndarray:
        """float64 [T,H,E] by plain softmax."""
        length, count = self.lengths[b], self.counts[b]
        pages = self.table[b, : -(-length // PAGE)]
        k, v = (
            x[pages].transpose(1, 0, 2, 3).reshape(self.groups, -1, self.dim)[:, :length].astype(np.float64)
            for x in (self.keys, self.values)
        )
        k, v = (np.repeat(x, self.heads // self.groups, 0) for x in (k, v))
        position = np.arange(length - count, length)[:, None]
        key = np.arange(length)[None]
        hidden = (key > position) | ((key <= position - window) if window else False)
        s = np.einsum("thd,hjd->thj", self.q[self.rows(b)], k) * self.dim**-0.5
        s = np.where(hidden[:, None], -np.inf, s)
        p = np.exp(s - s.max(-1, keepdims=True))
        return np.einsum("thj,hjd->thd", p / p.sum(-1, keepdims=True), v)


SHAPES = [(4, 4, 64), (9, 3, 64), (8, 2, 128), (16, 2, 128), (4, 1, 256)]


@pytest.mark.parametrize("window", [0, 100])
@pytest.mark.parametrize("heads, groups, dim", SHAPES)
def test_prefill_is_softmax(gpu, heads, groups, dim, window):
    case = Case(gpu, heads, groups, dim, [1, 63, 64, 65, 700], [1, 63, 10, 65, 300])
    got = case.run(range(5), window)
    for b in range(5):
        assert np.abs(got[case.rows(b)] - case.wanted(b, window)).max() < 2e-2


@pytest.mark.parametrize("window", [0, 100])
@pytest.mark.parametrize("heads, groups, dim", SHAPES)
def test_decode_has_prefills_bits(gpu, heads, groups, dim, window):
    """The last token of each sequence: alone, in company, and inside a whole prefill."""
    case = Case(gpu, heads, groups, dim, [1, 63, 64, 65, 1000, 5000], [1, 40, 64, 20, 130, 70])
    whole = case.run(range(6), window)
    ends = case.starts[1:] - 1
    together = case.run(range(6), window, first=-1)
    assert (together == whole[ends]).all(), "decode of all"
    for b in range(6):
        assert (case.run([b], window, first=-1) == whole[ends[b]]).all(), f"decode of sequence {b} alone"
        assert (case.run([b], window) == whole[case.rows(b)]).all(), f"prefill of sequence {b} alone"
    assert np.abs(whole[case.rows(5)] - case.wanted(5, window)).max() < 2e-2


def test_chunks_have_the_wholes_bits(gpu):
    case = Case(gpu, 8, 2, 128, [1000], [1000])
    whole = case.run([0])
    for first, last in ((0, 64), (64, 500), (500, 501), (501, None)):
        assert (case.run([0], first=first, last=last) == whole[first:last]).all()


@pytest.mark.parametrize("window", [0, 50])
@pytest.mark.parametrize("heads, groups, dim", [(4, 2, 8), (2, 1, 16), (8, 2, 64), (4, 4, 128), (2, 1, 256)])
def test_f32_is_softmax(gpu, heads, groups, dim, window):
    case = Case(gpu, heads, groups, dim, [1, 64, 65, 333], [1, 64, 5, 100])
    got = case.run(range(4), window, act="f32")
    for b in range(4):
        assert np.abs(got[case.rows(b)] - case.wanted(b, window)).max() < 1e-5
    alone = case.run([3], window, act="f32", first=-1)
    assert (alone[0] == got[-1]).all(), "a token has other bits alone"
