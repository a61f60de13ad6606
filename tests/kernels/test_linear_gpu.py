"""Matmuls on a GPU: every format against NumPy in f64 of the same bf16 numbers, and bits.

A row has the same bits whatever the number of rows, that is, whichever kernel serves it (few-row mma.sync,
many-row wgmma or mma.sync). Epilogues are checked exactly against the plain product.
"""

import functools

import harness
import numpy as np
import pytest
from xinfer.kernels.ref.linear import RUN

from xinfer.formats import FORMATS
from xinfer.formats.format import bf16_bits, bf16_values
from xinfer.tensor import DType

pytestmark = harness.NEEDS_GPU
TOKENS = (1, 3, 8, 9, 16, 17, 32, 33, 64, 65, 100, 128, 200)
MOST = max(TOKENS)
SIZES = [(n, k) for n in (48, 200, 1000) for k in (64, 320, 576, 4096)]
GAP = 8  # columns of out beyond N, which must stay as they are
UNTOUCHED = 77.0


@pytest.fixture(scope="module")
def gpu():
    """With all kernels built at once, on all cores."""
    from xinfer.kernels.cuda import linear, linear_f32

    for opened in harness.opened():
        specs = [linear_f32.spec(gated) for gated in (False, True)]
        for format in {f.kernel_name: f for f in FORMATS.values()}.values():
            specs += linear.specs(format.decoder, format.kernel_name, opened.library.sm)
        opened.library.prepare(list(dict.fromkeys(specs)))
        yield opened


@functools.cache
def activations(k: int) -> np.ndarray:
    """f32 [MOST,K] of bf16 numbers."""
    return harness.f32(harness.bf16(np.random.default_rng(k).standard_normal((MOST, k), np.float32)))


def sizes(name: str) -> list[tuple[int, int]]:
    """Sizes that a format can have; blocks of 256 want other K."""
    if FORMATS[name].block == 256:
        return [(n, k) for n in (48, 200, 1000) for k in (256, 768, 4096)]
    return SIZES


def values_of(name: str, raw: np.ndarray) -> np.ndarray:
    return bf16_values(bf16_bits(FORMATS[name].decode(raw)))


def product(gpu, launch, x, weight, t: int, n: int, **options) -> np.ndarray:
    """f32 [T,N] of the first T rows of x; `before`: what out holds (f32 [T,N])."""
    start = np.full((t, n + GAP), UNTOUCHED, np.float32)
    before = options.pop("before", None)
    if before is not None:
        start[:, :n] = before
    out = gpu.put(start)
    launch(gpu.stream, out.columns(0, n), x.rows(0, t), weight, **options)
    got = gpu.get(out)
    assert (got[:, n:] == UNTOUCHED).all(), "written past N"
    return got[:, :n]


@pytest.mark.parametrize("name", FORMATS)
def test_product_and_bits(gpu, name):
    from xinfer.kernels.cuda.linear import Linear

    launch = Linear(gpu.library, gpu.device.processors)
    for n, k in sizes(name):
        raw = harness.random_raw(name, n, k, seed=n + k)
        w, x = values_of(name, raw), activations(k)
        weight, px = gpu.weight(name, raw, k), gpu.put(harness.bf16(x), DType.BF16)
        wanted = x.astype(np.float64) @ w.T.astype(np.float64)
        magnitude = np.abs(x).astype(np.float64) @ np.abs(w).T.astype(np.float64)
        whole = product(gpu, launch, px, weight, MOST, n)
        # One weight is about 1/K of the magnitude; f32 sums of tensor cores are within 2^-20 of it.
        wrong = np.abs(whole - wanted) > 2.0**-18 * magnitude
        assert np.isfinite(whole).all() and not wrong.any(), (n, k, np.argwhere(wrong)[:5])
        for t in TOKENS[:-1]:
            got = product(gpu, launch, px, weight, t, n)
            assert (got == whole[:t]).all(), f"N {n} K {k}: {t} rows have other bits than {MOST}"
        last = product(gpu, launch, px.rows(MOST - 1, MOST), weight, 1, n)
        assert (last == whole[-1]).all(), f"N {n} K {k}: the last row alone has other bits"
        shallow = product(gpu, Linear(gpu.library, 0), px, weight, 3, n)
        assert (shallow == whole[:3]).all(), f"N {n} K {k}: fewer loads in flight give other bits"
        gpu.clear()


def test_thousands_of_rows(gpu):
    """More token tiles than run side by side: rows at their borders have the bits they have alone."""
    from xinfer.kernels.cuda.linear import Linear

    n, k, t, launch = 200, 320, 4400, Linear(gpu.library, gpu.device.processors)
    weight = gpu.weight("bf16", harness.random_raw("bf16", n, k), k)
    x = np.random.default_rng(4).standard_normal((t, k), np.float32)
    px = gpu.put(harness.bf16(x), DType.BF16)
    whole = product(gpu, launch, px, weight, t, n)
    for row in (0, 127, 128, 2047, 2048, 4095, 4096, t - 1):
        alone = product(gpu, launch, px.rows(row, row + 1), weight, 1, n)
        assert (alone == whole[row]).all(), row
    gpu.clear()


@pytest.mark.parametrize("name", sorted({f.kernel_name for f in FORMATS.values()}))
def test_epilogues(gpu, name):
    """bias and add are one f32 addition each to the plain product."""
    from xinfer.kernels.cuda.linear import Linear

    n, k, launch, rng = 200, 768, Linear(gpu.library, gpu.device.processors), np.random.default_rng(2)
    raw = harness.random_raw(name, n, k)
    weight, px = gpu.weight(name, raw, k), gpu.put(harness.bf16(activations(k)), DType.BF16)
    bias = rng.standard_normal(n).astype(np.float32)
    pb = gpu.put(bias)
    for t in (1, 9, 17, 64, 100):
        before = rng.standard_normal((t, n)).astype(np.float32)
        plain = product(gpu, launch, px, weight, t, n)
        assert (product(gpu, launch, px, weight, t, n, bias=pb) == plain + bias).all(), t
        assert (product(gpu, launch, px, weight, t, n, add=True, before=before) == plain + before).all(), t
        both = product(gpu, launch, px, weight, t, n, bias=pb, add=True, before=before)
        assert (both == plain + bias + before).all(), t
    gpu.clear()


def gated(y: np.ndarray, act: str) -> np.ndarray:
    """act(gate) * up in f64 of products [T,2I] in runs of gate and up rows."""
    runs = y.astype(np.float64).reshape(len(y), -1, 2, RUN)
    gate, up = runs[:, :, 0], runs[:, :, 1]
    if act == "silu":
        value = gate / (1 + np.exp(-gate))
    else:
        value = 0.5 * gate * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)))
    return (value * up).reshape(len(y), -1)


def near(got: np.ndarray, wanted: np.ndarray, step: float) -> None:
    """Within a rounding `step` of the output type and the error of the fast exponential."""
    assert np.isfinite(got).all()
    assert (np.abs(got - wanted) <= step * np.abs(wanted) + 2e-5 * np.abs(wanted).max()).all()


@pytest.mark.parametrize("act", ["silu", "gelu_tanh"])
@pytest.mark.parametrize("name", sorted({f.kernel_name for f in FORMATS.values()}))
def test_glu(gpu, name, act):
    from xinfer.kernels.cuda.linear import Linear

    width, k, launch = 192, 768, Linear(gpu.library, gpu.device.processors)
    raw = harness.random_raw(name, 2 * width, k)
    w = values_of(name, raw)
    x = harness.f32(harness.bf16(activations(k) * np.float32(1.5 / (w.std() * np.sqrt(k)))))
    weight, px = gpu.weight(name, raw, k), gpu.put(harness.bf16(x), DType.BF16)
    wanted = gated(x.astype(np.float64) @ w.T.astype(np.float64), act)

    def run(t: int) -> np.ndarray:
        out = gpu.put(np.full((t, width + GAP), UNTOUCHED, np.uint16), DType.BF16)
        launch.glu(gpu.stream, out.columns(0, width), px.rows(0, t), weight, act)
        got = gpu.get(out)
        assert (got[:, width:] == UNTOUCHED).all(), "written past I"
        return got[:, :width].copy()

    whole = run(MOST)
    near(harness.f32(whole), wanted, 2.0**-8)
    for t in TOKENS[:-1]:
        assert (run(t) == whole[:t]).all(), f"{t} rows have other bits than {MOST}"
    gpu.clear()


@pytest.mark.parametrize("n, k", [(48, 64), (200, 324), (1000, 4096)])
def test_f32(gpu, n, k):
    """f32 mode: any K that is a multiple of 4."""
    from xinfer.kernels.cuda.linear import Linear

    rng, launch = np.random.default_rng(n), Linear(gpu.library, gpu.device.processors)
    w, x = rng.standard_normal((n, k), np.float32), rng.standard_normal((33, k), np.float32)
    weight, px, bias = gpu.dense(w), gpu.put(x), rng.standard_normal(n).astype(np.float32)
    wanted = x.astype(np.float64) @ w.T.astype(np.float64)
    magnitude = np.abs(x).astype(np.float64) @ np.abs(w).T.astype(np.float64)
    whole = product(gpu, launch, px, weight, 33, n)
    assert (np.abs(whole - wanted) <= 2.0**-20 * magnitude).all()
    for t in (1, 3, 8, 9, 16, 17):
        got = product(gpu, launch, px, weight, t, n)
        assert (got == whole[:t]).all(), f"{t} rows have other bits than 33"
    assert (product(gpu, launch, px, weight, 9, n, bias=gpu.put(bias)) == whole[:9] + bias).all()
    assert (product(gpu, launch, px, weight, 9, n, add=True, before=whole[:9]) == whole[:9] * 2).all()
    gpu.clear()


@pytest.mark.parametrize("act", ["silu", "gelu_tanh"])
def test_f32_glu(gpu, act):
    from xinfer.kernels.cuda.linear import Linear

    rng, launch = np.random.default_rng(7), Linear(gpu.library, gpu.device.processors)
    width, k, t = 128, 256, 11
    w = rng.standard_normal((2 * width, k), np.float32) / 16
    x = rng.standard_normal((t, k), np.float32)
    out = gpu.put(np.full((t, width), UNTOUCHED, np.float32))
    launch.glu(gpu.stream, out, gpu.put(x), gpu.dense(w), act)
    near(gpu.get(out), gated(x.astype(np.float64) @ w.T.astype(np.float64), act), 1e-5)
    gpu.clear()
