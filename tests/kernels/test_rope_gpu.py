"""rope_kv on a GPU against its NumPy meaning in float64, for both activation types."""

import harness
import numpy as np
import pytest
from xinfer.kernels.ref import rope as ref

from xinfer.tensor import DType

pytestmark = harness.NEEDS_GPU
gpu = pytest.fixture(scope="module")(harness.opened)


@pytest.mark.parametrize("act", ["bf16", "f32"])
@pytest.mark.parametrize(
    "heads, groups, dim, turned, normed",
    [
        (4, 2, 64, 64, False),
        (8, 2, 128, 128, True),
        (4, 1, 256, 256, True),
        (3, 1, 64, 32, False),
        (4, 4, 8, 8, False),
    ],
)
def test_rope_kv(gpu, act, heads, groups, dim, turned, normed):
    from xinfer.kernels.cuda.rope import RopeKv

    rng, tokens, pages = np.random.default_rng(dim), 70, 6
    qkv = rng.standard_normal((tokens, (heads + 2 * groups) * dim), np.float32)
    angles = rng.uniform(0, 7, (200, turned // 2))
    table = np.concatenate([np.cos(angles), np.sin(angles)], 1).astype(np.float32)
    positions = rng.permutation(200)[:tokens].astype(np.int32)
    slots = rng.permutation(pages * 64)[:tokens].astype(np.int32)
    slots[5] = -1
    norms = [rng.standard_normal(dim).astype(np.float32) if normed else None for _ in range(2)]
    shape = (pages, groups, 64, dim)
    wanted = [np.zeros((tokens, heads, dim)), np.full(shape, 7.0), np.full(shape, 7.0)]
    wide = [None if n is None else n.astype(np.float64) for n in norms]
    ref.rope_kv(*wanted, qkv.astype(np.float64), table.astype(np.float64), positions, slots, *wide, 1e-6)
    dtype = DType.BF16 if act == "bf16" else DType.F32
    before = np.full(shape, 7, np.float32)
    out = [gpu.empty((tokens, heads, dim), dtype)]
    out += [gpu.put(harness.bf16(before) if act == "bf16" else before, dtype) for _ in range(2)]
    sources = [gpu.put(x) for x in (qkv, table, positions, slots)]
    RopeKv(gpu.library, act)(
        gpu.stream, *out, *sources, *(None if n is None else gpu.put(n) for n in norms), 1e-6
    )
    for got, want in zip((gpu.get(tensor) for tensor in out), wanted):
        got = harness.f32(got.copy()) if act == "bf16" else got
        assert np.abs(got - want).max() <= (2.0**-7 if act == "bf16" else 1e-5) * np.abs(want).max()
    gpu.clear()
