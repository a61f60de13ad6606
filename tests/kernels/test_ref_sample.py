"""The sampler's meaning: Philox against the vectors published with it (Random123, kat_vectors), and draws
against the distribution they come from, restricted as the parameters say."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xinfer.kernels.ref.sample import draw, kept_masses, penalize, philox, sample

LOGITS = np.random.default_rng(0).standard_normal(50, np.float32) * 2


def test_philox_vectors():
    """Counter and key all zeros; the other published vectors use counter words that a step number never
    sets."""
    assert philox(0, 0) == (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)


def probabilities(logits, temperature: float = 1.0) -> np.ndarray:
    p = np.exp((logits - logits.max()).astype(np.float64) / temperature)
    return p / p.sum()


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
def test_masses_are_softmax(temperature):
    mass = kept_masses(LOGITS, temperature, 1.0, 0.0, 0).astype(np.float64)
    assert np.abs(mass / mass.sum() - probabilities(LOGITS, temperature)).max() < 1e-6


@given(st.integers(1, 60), st.floats(0.01, 1.0), st.floats(0.0, 0.9))
@settings(max_examples=200, deadline=None)
def test_restrictions(top_k, top_p, min_p):
    kept = np.flatnonzero(kept_masses(LOGITS, 1.0, top_p, min_p, top_k))
    p = probabilities(LOGITS)
    order = np.argsort(-p)
    allowed = order[: min(top_k, 50)]
    share = np.cumsum(p[allowed]) / p[allowed].sum()
    fewest = allowed[: int(np.searchsorted(share, top_p - 1e-9)) + 1]
    wanted = {int(t) for t in fewest if p[t] >= min_p * p.max() * (1 - 1e-9)}
    borders = {int(t) for t in order if abs(p[t] - min_p * p.max()) < 1e-6} | {int(fewest[-1])}
    assert set(kept.tolist()) ^ wanted <= borders, "only a token on a threshold may differ"


def test_ties_are_kept_together():
    logits = np.array([1, 3, 3, 3, 0], np.float32)
    assert np.flatnonzero(kept_masses(logits, 1.0, 1.0, 0.0, 2)).tolist() == [1, 2, 3]


def test_draws_follow_the_distribution():
    """Chi-square of 20000 steps of one seed over 50 tokens: below 94, which chance passes once in 10000."""
    mass = kept_masses(LOGITS, 1.0, 1.0, 0.0, 0)
    seen = np.bincount([draw(mass, 1234, step) for step in range(20000)], minlength=50)
    expected = probabilities(LOGITS) * 20000
    big = expected > 5
    assert ((seen - expected)[big] ** 2 / expected[big]).sum() < 94


def call(logits, temperature: float, rows=(0,), seed: int = 5, step: int = 0):
    b = len(rows)
    tokens, last, counts = np.zeros(b, np.int32), np.full(3, -7, np.int32), np.zeros((3, 50), np.uint16)
    full = [np.full(b, v, t) for v, t in ((temperature, "f4"), (1, "f4"), (0, "f4"), (0, "i4"))]
    sample(
        tokens, last, counts, np.tile(logits, (b, 1)), np.array(rows, np.int32), *full,
        np.full(b, seed, np.uint64), np.full(b, step, np.int32),
    )  # fmt: skip
    return tokens, last, counts


def test_greedy_takes_the_lowest_of_the_largest():
    logits = np.zeros(50, np.float32)
    logits[[7, 30]] = 2
    tokens, last, counts = call(logits, 0.0, rows=(2, -1))
    assert tokens.tolist() == [7, 0] and last.tolist() == [-7, -7, 7]
    assert counts[2, 7] == 1 and counts.sum() == 1


def test_a_seed_repeats_in_any_row():
    assert call(LOGITS, 1.0, rows=(0, 1, 2))[0].tolist() == [int(call(LOGITS, 1.0)[0][0])] * 3
    assert len({int(call(LOGITS, 1.0, step=s)[0][0]) for s in range(40)}) > 5


def test_penalties():
    """One token of each kind, by hand: seen in the prompt, generated twice, neither, biased."""
    counts = np.zeros((1, 4), np.uint16)
    counts[0] = [0x8000, 2, 0, 0]
    logits = np.array([[2.0, -1.0, 3.0, 1.0]], np.float32)
    one = [np.full(1, v, np.float32) for v in (2.0, 0.5, 0.25)]
    ids, values = np.array([[3, -1]], np.int32), np.array([[-4.0, 9.0]], np.float32)
    penalize(logits, counts, np.zeros(1, np.int32), *one, ids, values)
    assert logits[0].tolist() == [1.0, -2.0 - 2 * 0.5 - 0.25, 3.0, -3.0]
