"""The sampler and penalties on a GPU against kernels/ref.

Masses come from ex2, whose last bits differ between NumPy and the GPU: where masses are whole powers of two
the tokens must be equal, else a few in a thousand may differ, and reproducibility is GPU against GPU.
"""

import harness
import numpy as np
import pytest
from xinfer.kernels.ref import sample as ref

from xinfer.tensor import DType

pytestmark = harness.NEEDS_GPU
gpu = pytest.fixture(scope="module")(harness.opened)
PARAMS = {"temperature": 1.0, "top_p": 1.0, "min_p": 0.0, "top_k": 0}


def state(logits: np.ndarray, rows=None, seed: int = 1, step: int = 0, **params) -> dict[str, np.ndarray]:
    """Arguments of `sample` by name, in its order; each row its own seed."""
    b, v = logits.shape
    rows = np.arange(b) if rows is None else np.asarray(rows)
    counts = np.zeros((b + 1, v), np.uint16)
    counts[:, ::2], counts[:, 1::8] = 0x8003, 0x7FFF
    chosen = PARAMS | params
    fields = {name: np.full(b, chosen[name], np.float32) for name in ("temperature", "top_p", "min_p")}
    return {
        "tokens": np.full(b, -9, np.int32), "last": np.full(b + 1, -7, np.int32), "counts": counts,
        "logits": logits.astype(np.float32), "rows": rows.astype(np.int32), **fields,
        "top_k": np.full(b, chosen["top_k"], np.int32),
        "seeds": np.arange(b, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(seed),
        "steps": np.full(b, step, np.int32),
    }  # fmt: skip


def run(gpu, fields: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The outputs of a sample on the GPU."""
    from xinfer.kernels.cuda.sample import Sample

    b, v = fields["logits"].shape
    tensors = [gpu.put(array) for array in fields.values()]
    scratch = gpu.empty((Sample.scratch_bytes(b, v),), DType.U8)
    Sample(gpu.library)(gpu.stream, *tensors, scratch.ptr)
    out = {name: gpu.get(tensor) for name, tensor in zip(("tokens", "last", "counts"), tensors)}
    gpu.clear()
    return out


def meaning(fields: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    copies = {name: array.copy() for name, array in fields.items()}
    ref.sample(*copies.values())
    return copies


def equal(got: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> None:
    assert (got["tokens"] == wanted["tokens"]).all(), (got["tokens"], wanted["tokens"])
    assert (got["last"] == wanted["last"]).all() and (got["counts"] == wanted["counts"]).all()


@pytest.mark.parametrize("v", [1, 33, 2049, 32000, 151_936, 262_144])
def test_greedy_takes_the_lowest_index(gpu, v):
    rng = np.random.default_rng(v)
    logits = np.round(rng.standard_normal((6, v)) * 2).astype(np.float32)  # many ties
    logits[1] = -np.abs(logits[1]) - 1
    logits[2, v // 2 :] = 100
    logits[3] = -np.inf
    logits[3, -1] = -1e30
    logits[4] = np.where(np.arange(v) % 2, 0.0, -0.0)  # one value
    fields = state(logits, rows=[3, 0, 6, 2, 1, -1], temperature=0.0, top_k=3, top_p=0.5)
    equal(run(gpu, fields), meaning(fields))


def test_masses_that_are_powers_of_two_give_the_tokens_of_numpy(gpu):
    """exp2 of whole numbers is exact: logits are n ln 2 with scale 1 / ln 2 only nearly, so equal logits it
    is."""
    rng = np.random.default_rng(0)
    for v in (5, 3000, 128_256):
        logits = np.where(rng.random((8, v)) < 0.5, 3.0, -1e9).astype(np.float32)
        logits[:, v // 2] = 3.0
        for params in ({}, {"top_k": 2}, {"top_p": 0.5}, {"top_k": 10, "top_p": 0.9, "min_p": 0.3}):
            fields = state(logits, seed=v, step=7, **params)
            equal(run(gpu, fields), meaning(fields))


@pytest.mark.parametrize(
    "params",
    [
        {}, {"temperature": 0.7, "top_k": 40}, {"top_p": 0.9}, {"temperature": 1.5, "top_k": 400, "top_p":
        0.8}, {"min_p": 0.1}, {"temperature": 3.0, "top_k": 3000, "top_p": 0.99, "min_p": 0.001},
        {"temperature": 100.0, "top_p": 0.5}, {"temperature": 1e-3, "top_p": 0.99}, {"top_k": 1}, {"top_p":
        1e-6}, {"temperature": 100.0, "top_k": 31_000},
    ],
)  # fmt: skip
@pytest.mark.parametrize("rounded", [False, True])
def test_draws_are_those_of_numpy(gpu, params, rounded):
    """Also with many ties (rounded logits), which must stay together."""
    rng = np.random.default_rng(3)
    logits = (rng.standard_normal((24, 32_003)) * 3).astype(np.float32)
    if rounded:
        logits = np.round(logits)
    same = 0
    for step in range(3):
        fields = state(logits, seed=99, step=step, **params)
        got, wanted = run(gpu, fields)["tokens"], meaning(fields)["tokens"]
        same += (got == wanted).sum()
        for b in np.flatnonzero(got != wanted):
            scaled = fields["temperature"][b], fields["top_p"][b] * 1.001, fields["min_p"][b] * 0.999
            assert ref.kept_masses(fields["logits"][b], *scaled, int(fields["top_k"][b]))[got[b]]
    assert same >= 71, f"{72 - same} of 72 draws differ"


@pytest.mark.parametrize("v", [151_936, 262_144])
def test_large_vocabularies(gpu, v):
    logits = (np.random.default_rng(v).standard_normal((6, v)) * 2.5).astype(np.float32)
    same = 0
    for params in ({}, {"top_k": 50, "top_p": 0.95}, {"top_p": 0.9}, {"top_k": v - 1}):
        fields = state(logits, seed=4, **params)
        same += (run(gpu, fields)["tokens"] == meaning(fields)["tokens"]).sum()
    assert same >= 23, f"{24 - same} of 24 draws differ"


def test_distribution(gpu):
    """8192 draws of 12 tokens by their probabilities: chi-squared below its 1e-6 quantile for 11 degrees."""
    logits = np.tile(np.linspace(-1, 2.5, 12, dtype=np.float32), (256, 1))
    seen = np.zeros(12)
    for step in range(32):
        tokens = run(gpu, state(logits, seed=12345, step=step, temperature=1.3))["tokens"]
        seen += np.bincount(tokens, minlength=12)
    p = np.exp(logits[0].astype(np.float64) / 1.3)
    expected = p / p.sum() * seen.sum()
    assert ((seen - expected) ** 2 / expected).sum() < 49


def test_a_row_does_not_depend_on_its_mates_and_repeats(gpu):
    logits = (np.random.default_rng(5).standard_normal((40, 50_000)) * 2).astype(np.float32)
    fields = state(logits, seed=8, top_p=0.97, top_k=5000, temperature=0.9)
    fields["temperature"][::3] = 0
    first, again = run(gpu, fields), run(gpu, fields)
    assert (first["tokens"] == again["tokens"]).all()
    b = 17
    single = {n: a[b : b + 1] for n, a in fields.items() if n not in ("last", "counts")}
    alone = run(gpu, {n: single.get(n, a) for n, a in fields.items()})
    assert alone["tokens"][0] == first["tokens"][b]


def test_logits_of_rows_that_lie_apart(gpu):
    from xinfer.kernels.cuda.sample import Sample

    logits = np.random.default_rng(6).standard_normal((3, 1003)).astype(np.float32)
    fields = state(logits[:, :1000], temperature=1.0, top_k=20)
    tensors = {name: gpu.put(array) for name, array in fields.items()}
    tensors["logits"] = gpu.put(logits).columns(0, 1000)
    scratch = gpu.empty((Sample.scratch_bytes(3, 1000),), DType.U8)
    Sample(gpu.library)(gpu.stream, *tensors.values(), scratch.ptr)
    assert (gpu.get(tensors["tokens"]) == run(gpu, fields)["tokens"]).all()


@pytest.mark.parametrize("v", [100, 2048, 50_001])
def test_penalize(gpu, v):
    from xinfer.kernels.cuda.penalize import Penalize

    rng = np.random.default_rng(v)
    logits = (rng.standard_normal((4, v)) * 5).astype(np.float32)
    counts = (rng.integers(0, 4, (5, v)) * (rng.random((5, v)) < 0.1)).astype(np.uint16)
    counts[rng.random((5, v)) < 0.1] |= 0x8000
    ids = np.full((5, 300), -1, np.int32)
    for s in range(5):
        ids[s, 3:60] = rng.choice(v, 57, replace=False)
    floats = [np.array(a, np.float32) for a in ([1.3, 1, 0.8, 1], [0.5, 0, -1, 2], [0.25, 0, 1.5, -0.1])]
    fields = [logits, counts, np.array([4, -1, 0, 2], np.int32), *floats, ids]
    fields.append(rng.standard_normal((5, 300)).astype(np.float32))
    tensors = [gpu.put(array) for array in fields]
    Penalize(gpu.library)(gpu.stream, *tensors)
    got = gpu.get(tensors[0])
    gpu.clear()
    ref.penalize(*fields)
    assert (got == logits).all()


@pytest.mark.parametrize(
    "params, most",
    [({"temperature": 0.0}, 40), ({}, 200), ({"top_k": 50, "top_p": 0.95}, 300), ({"top_p": 0.95}, 300)],
)
def test_time(gpu, params, most):
    """Prints; fails only when something is badly wrong. us a step at V 131072, one row and 32."""
    from xinfer.kernels.cuda.sample import Sample

    for b in (1, 32):
        logits = (np.random.default_rng(0).standard_normal((b, 131_072)) * 3).astype(np.float32)
        tensors = [gpu.put(array) for array in state(logits, **params).values()]
        scratch = gpu.empty((Sample.scratch_bytes(b, 131_072),), DType.U8)
        launch = Sample(gpu.library)
        with gpu.device.capture() as graph:
            for _ in range(20):
                launch(gpu.stream, *tensors, scratch.ptr)
        start, end = gpu.device.event(timing=True), gpu.device.event(timing=True)
        graph.replay()
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        us = end.seconds_since(start) * 1e6 / 20
        print(f"sample {params} V 131072 B {b}: {us:.1f} us")
        graph.close()
        gpu.clear()
        assert us < most * (1 if b == 1 else 3)
