"""CPU ops against their NumPy meaning; and their promise, bit for bit: a row is the same in any company."""

import numpy as np
import pytest
from xinfer.kernels.cpu import attention as cpu_attention
from xinfer.kernels.cpu import linear as cpu_linear
from xinfer.kernels.cpu import norm as cpu_norm
from xinfer.kernels.ref import attention, linear, norm, rope

RNG = np.random.default_rng(0)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape, np.float32)


@pytest.mark.parametrize("n, k", [(1, 4), (33, 100), (64, 576), (200, 1536)])
def test_linear(n, k):
    x, w, bias, before = normal(9, k), normal(n, k), normal(n), normal(9, n + 5)
    for options in ({}, {"bias": bias}, {"add": True}, {"bias": bias, "add": True}):
        got, wanted = before.copy(), before[:, :n].copy()
        cpu_linear.linear(got[:, :n], x, w, **options)
        linear.linear(wanted, x, w, **options)
        assert np.abs(got[:, :n] - wanted).max() < 1e-4 * np.sqrt(k)
        assert (got[:, n:] == before[:, n:]).all(), "written past N"


@pytest.mark.parametrize("act", ["silu", "gelu_tanh"])
def test_linear_glu(act):
    x, w = normal(7, 96), normal(256, 96) / 8
    got, wanted = np.empty((7, 128), np.float32), np.empty((7, 128), np.float32)
    cpu_linear.linear_glu(got, x, w, act)
    linear.linear_glu(wanted, x, w, act)
    assert np.abs(got - wanted).max() < 1e-4


def test_a_linear_row_is_its_own():
    x, w = normal(13, 576), normal(100, 576)
    whole = np.empty((13, 100), np.float32)
    cpu_linear.product(whole, x, w)
    for t in (1, 2, 3, 4, 5, 8):
        for start in range(0, 13 - t):
            part = np.empty((t, 100), np.float32)
            cpu_linear.product(part, np.ascontiguousarray(x[start : start + t]), w)
            assert (part == whole[start : start + t]).all(), (t, start)


def test_norms():
    x, w, rows = normal(6, 640), normal(640), np.array([3, -1, 0], np.int32)
    got, wanted = np.empty((3, 640), np.float32), np.empty((3, 640), np.float32)
    cpu_norm.rmsnorm(got, x, rows, w, 1e-6, False)
    norm.rmsnorm_rows(wanted, x, rows, w, 1e-6)
    assert np.abs(got - wanted).max() < 1e-5 and not got[1].any()
    h = normal(6, 640)
    got, wanted = h.copy(), h.copy()
    cpu_norm.rmsnorm(got, x, np.arange(6, dtype=np.int32), w, 1e-6, True)
    norm.rmsnorm_add(wanted, x, w, 1e-6)
    assert np.abs(got - wanted).max() < 1e-5


@pytest.mark.parametrize("normed", [False, True])
def test_rope_kv(normed):
    tokens, heads, groups, dim = 5, 4, 2, 16
    qkv, angles = normal(tokens, (heads + 2 * groups) * dim), RNG.uniform(0, 7, (40, 4))
    table = np.concatenate([np.cos(angles), np.sin(angles)], 1).astype(np.float32)
    positions, slots = np.array([3, 39, 0, 7, 8], np.int32), np.array([64, 1, -1, 127, 63], np.int32)
    norms = [normal(dim) for _ in range(2)] if normed else [None, None]
    outs = [[np.zeros((tokens, heads, dim), np.float32)] + [normal(2, groups, 64, dim) for _ in range(2)]]
    outs.append([x.copy() for x in outs[0]])
    rope.rope_kv(*outs[0], qkv, table, positions, slots, *norms, 1e-6)
    none = np.empty(0, np.float32)
    given = [none if n is None else n for n in norms]
    cpu_attention.rope_kv(*outs[1], qkv, table, positions, slots, *given, 1e-6)
    for wanted, got in zip(*outs):
        assert np.abs(got - wanted).max() < 1e-5


def attention_case(lengths: list[int], counts: list[int], heads: int = 4, groups: int = 2, dim: int = 16):
    pages = [-(-n // 64) for n in lengths]
    table = np.zeros((len(lengths), max(pages)), np.int32)
    order = RNG.permutation(sum(pages))
    for b, n in enumerate(pages):
        table[b, :n] = order[sum(pages[:b]) : sum(pages[: b + 1])]
    caches = [normal(sum(pages), groups, 64, dim) for _ in range(2)]
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    return normal(sum(counts), heads, dim), *caches, table, starts, np.array(lengths, np.int32)


def run(function, q, keys, values, table, starts, lengths, window: int) -> np.ndarray:
    out = np.full((len(q), q.shape[1] * q.shape[2]), 7, np.float32)
    function(out, q, keys, values, table, starts, lengths, 0.25, window)
    return out


def plain_softmax(q, keys, values, table, starts, lengths, window: int) -> np.ndarray:
    """float64 [T,HE], without blocks: a witness that shares no code with the others."""
    out = []
    for b, length in enumerate(lengths):
        k, v = (
            x[table[b, : -(-length // 64)]].transpose(0, 2, 1, 3).reshape(-1, *x.shape[1::2])[:length]
            for x in (keys, values)
        )
        count = starts[b + 1] - starts[b]
        for i in range(count):
            position = length - count + i
            low = max(0, position - window + 1) if window else 0
            for h in range(q.shape[1]):
                g = h * keys.shape[1] // q.shape[1]
                s = k[low : position + 1, g].astype(np.float64) @ q[starts[b] + i, h] * 0.25
                p = np.exp(s - s.max())
                out.append(p / p.sum() @ v[low : position + 1, g])
    return np.array(out).reshape(len(q), -1)


@pytest.mark.parametrize("window", [0, 50])
def test_attention(window):
    """The blocked meaning and the CPU's loop, both against plain softmax in float64."""
    case = attention_case([1, 64, 65, 200], [1, 3, 65, 7])
    wanted = plain_softmax(*case, window)
    assert np.abs(run(attention.attention, *case, window) - wanted).max() < 1e-5
    assert np.abs(run(cpu_attention.attention, *case, window) - wanted).max() < 1e-5


def test_an_attention_row_is_its_own():
    q, keys, values, table, starts, lengths = attention_case([150, 90], [150, 90])
    whole = run(cpu_attention.attention, q, keys, values, table, starts, lengths, 0)
    for b in range(2):
        for i in (0, 1, 63, 64, 89):
            one = run(
                cpu_attention.attention, q[starts[b] + i][None], keys, values, table[b : b + 1],
                np.array([0, 1], np.int32), np.array([i + 1], np.int32), 0,
            )  # fmt: skip
            assert (one[0] == whole[starts[b] + i]).all()


def test_a_padded_sequence_is_zeros():
    case = list(attention_case([5, 5], [1, 1]))
    case[-1] = np.array([5, 0], np.int32)
    assert not run(cpu_attention.attention, *case, 0)[1].any()
