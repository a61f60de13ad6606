"""Norms on a GPU against NumPy in f64; a row's bits do not depend on the other rows."""

import harness
import numpy as np
import pytest

from xinfer.tensor import DType

pytestmark = harness.NEEDS_GPU
gpu = pytest.fixture(scope="module")(harness.opened)
EPS = 1e-5
SIZES = [(1, 64), (3, 1024), (7, 4100), (130, 4096), (5, 8192), (2, 20480)]


def case(t: int, d: int):
    rng = np.random.default_rng(t * d)
    x = (rng.standard_normal((t, d)) * rng.uniform(0.1, 10, (t, 1))).astype(np.float32)
    weight = rng.standard_normal(d).astype(np.float32)
    wide = x.astype(np.float64)
    wanted = wide / np.sqrt(np.mean(wide**2, axis=1, keepdims=True) + EPS) * weight
    return x, weight, wanted


def close(got: np.ndarray, wanted: np.ndarray, act: str) -> None:
    tolerance = 2e-6 if act == "f32" else 2.0**-8 * 1.01
    assert np.isfinite(got).all()
    assert (np.abs(got - wanted) <= tolerance * np.abs(wanted) + 1e-30).all()


@pytest.mark.parametrize("act", ["bf16", "f32"])
@pytest.mark.parametrize("t, d", SIZES)
def test_rmsnorm(gpu, t, d, act):
    from xinfer.kernels.cuda.norm import RmsNorm, RmsNormRows

    x, weight, wanted = case(t, d)
    dtype = DType.BF16 if act == "bf16" else DType.F32
    px, pw = gpu.put(x), gpu.put(weight)
    wide = gpu.put(np.full((t, d + 8), 77, dtype.numpy), dtype)
    RmsNorm(gpu.library, act)(gpu.stream, wide.columns(0, d), px, pw, EPS)
    whole = gpu.get(wide)
    got = whole[:, :d]
    assert (whole[:, d:] == 77).all(), "written past the row"
    close(harness.f32(got.copy()) if act == "bf16" else got, wanted, act)

    rows = np.array([t - 1, -1, 0, t // 2], np.int32)
    picked = gpu.put(np.full((4, d), 77, dtype.numpy), dtype)
    RmsNormRows(gpu.library, act)(gpu.stream, picked, px, gpu.put(rows), pw, EPS)
    chosen = gpu.get(picked)
    assert not (chosen[1] & 0x7FFF if act == "bf16" else chosen[1]).any()
    assert (chosen[rows >= 0] == got[rows[rows >= 0]]).all(), "a picked row has other bits"

    single = gpu.empty((1, d), dtype)
    RmsNorm(gpu.library, act)(gpu.stream, single, px.rows(t - 1, t), pw, EPS)
    assert (gpu.get(single)[0] == got[t - 1]).all(), "alone, a row has other bits"
    gpu.clear()


@pytest.mark.parametrize("t, d", SIZES)
def test_rmsnorm_add(gpu, t, d):
    from xinfer.kernels.cuda.norm import RmsNorm, RmsNormAdd

    x, weight, _ = case(t, d)
    h = np.random.default_rng(1).standard_normal((t, d)).astype(np.float32)
    ph, px, pw, normed = gpu.put(h), gpu.put(x), gpu.put(weight), gpu.empty((t, d))
    RmsNorm(gpu.library, "f32")(gpu.stream, normed, px, pw, EPS)
    RmsNormAdd(gpu.library)(gpu.stream, ph, px, pw, EPS)
    assert (gpu.get(ph) == h + gpu.get(normed)).all()
    gpu.clear()
