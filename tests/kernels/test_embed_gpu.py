"""embed on a GPU, exactly: rows of every format's packed table and of a dense one."""

import harness
import numpy as np
import pytest

from xinfer.formats import FORMATS
from xinfer.formats.format import bf16_bits, bf16_values

pytestmark = harness.NEEDS_GPU
gpu = pytest.fixture(scope="module")(harness.opened)
V = 77
TOKENS = np.array([0, 76, -1, 5, -2, 13, 8, 40, -1, 31], np.int32)
ROWS = np.array([0, 0, 2, 1, 0, 0, 0, 0, 0, 0], np.int32)
LAST = np.array([7, 9999, 63], np.int32)  # the second is never used
IDS = np.array([0, 76, 63, 5, -2, 13, 8, 40, 7, 31])


def run(gpu, table, values: np.ndarray, scale: float) -> None:
    from xinfer.kernels.cuda.embed import Embed

    t, d = len(TOKENS), values.shape[1]
    wide = gpu.put(np.full((t, d + 6), 77, np.float32))
    Embed(gpu.library)(
        gpu.stream, wide.columns(0, d), gpu.put(TOKENS), gpu.put(LAST), gpu.put(ROWS), table, scale
    )
    got = gpu.get(wide)
    wanted = values[np.maximum(IDS, 0)] * np.float32(scale)
    wanted[IDS < 0] = 0
    assert (got[:, d:] == 77).all() and (got[:, :d] == wanted).all()
    gpu.clear()


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("d", [256, 1280])
def test_packed(gpu, name, d):
    raw = harness.random_raw(name, V, d)
    run(gpu, gpu.weight(name, raw, d), bf16_values(bf16_bits(FORMATS[name].decode(raw))), 1.0)


@pytest.mark.parametrize("name", ["bf16", "q8_0"])
def test_packed_where_d_fills_no_tile_and_values_are_scaled(gpu, name):
    raw = harness.random_raw(name, V, 352)
    values = bf16_values(bf16_bits(FORMATS[name].decode(raw)))
    run(gpu, gpu.weight(name, raw, 352), values, 18.75)


@pytest.mark.parametrize("d", [48, 1027])
def test_dense(gpu, d):
    values = np.random.default_rng(0).standard_normal((V, d)).astype(np.float32)
    run(gpu, gpu.dense(values), values, 3.0)
