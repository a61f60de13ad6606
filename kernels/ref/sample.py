"""penalize and sample: what they mean, and what the CPU runs.

Draws: mass_i = floor(2^40 * 2^((logit_i - max) * log2(e) / temperature)) is an integer, so sums do not depend
on their order. Tokens are kept by rank, ties kept together: the top_k largest; of those the fewest largest
whose mass reaches top_p of theirs; of those the ones with mass >= min_p of the largest. With r the first 64
bits of Philox4x32-10 (Salmon et al., SC'11; key the seed, counter the step), the token is the first in id
order whose cumulative mass exceeds floor(r * total / 2^64).
"""

import numpy as np

MASS_BITS = 40
_IN_PROMPT = 0x8000
_MOST = 0x7FFF
_LOG2E = np.float32(1.4426950408889634)


def philox(seed: int, step: int) -> tuple[int, int, int, int]:
    """Four u32 words for counter (step, 0, 0, 0)."""
    c, k0, k1 = [step & 0xFFFFFFFF, 0, 0, 0], seed & 0xFFFFFFFF, seed >> 32
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [b >> 32 ^ c[1] ^ k0, b & 0xFFFFFFFF, a >> 32 ^ c[3] ^ k1, a & 0xFFFFFFFF]
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return tuple(c)


def penalize(logits, counts, rows, repetition, frequency, presence, bias_ids, bias_values) -> None:
    """logits f32 [B,V], counts u16 [S,V] (low 15 bits: times generated, bit 15: in the prompt), rows i32 [B],
    bias_ids i32 [S,NB] (-1: none), bias_values f32 [S,NB]."""
    for b in np.flatnonzero(rows >= 0):
        row, count = logits[b], counts[rows[b]]
        seen, times = count > 0, (count & _MOST).astype(np.float32)
        row[seen] = np.where(row[seen] > 0, row[seen] / repetition[b], row[seen] * repetition[b])
        row -= frequency[b] * times + presence[b] * (times > 0).astype(np.float32)
        used = bias_ids[rows[b]] >= 0
        np.add.at(row, bias_ids[rows[b]][used], bias_values[rows[b]][used])


def sample(tokens, last, counts, logits, rows, temperature, top_p, min_p, top_k, seeds, steps) -> None:
    """tokens i32 [B], last i32 [S], counts u16 [S,V], logits f32 [B,V], rows i32 [B] (-1: padded, token
    0)."""
    for b, row in enumerate(rows):
        if row < 0:
            tokens[b] = 0
            continue
        if temperature[b] == 0:
            token = int(np.argmax(logits[b]))
        else:
            mass = kept_masses(logits[b], temperature[b], top_p[b], min_p[b], int(top_k[b]))
            token = draw(mass, int(seeds[b]), int(steps[b]))
        tokens[b] = last[row] = token
        count = counts[row, token]
        if count & _MOST < _MOST:
            counts[row, token] = count + 1


def kept_masses(logits, temperature, top_p, min_p, top_k) -> np.ndarray:
    """u64 [V]: the mass of each token that may be drawn, 0 for the others."""
    exponent = (logits - logits.max()) * (_LOG2E / np.float32(temperature))
    mass = np.floor(np.ldexp(np.exp2(exponent).astype(np.float64), MASS_BITS)).astype(np.uint64)
    if 0 < top_k < len(logits):
        mass[logits < np.partition(logits, -top_k)[-top_k]] = 0
    if top_p < 1:
        order = np.argsort(-logits, kind="stable")
        reached = np.cumsum(mass[order])
        wanted = int(np.floor(np.float64(top_p) * float(reached[-1])))
        fewest = int(np.searchsorted(reached, np.uint64(max(wanted, 1))))
        mass[logits < logits[order[fewest]]] = 0
    if min_p > 0:
        mass[mass < np.floor(np.float64(min_p) * float(mass.max()))] = 0
    return mass


def draw(mass, seed: int, step: int) -> int:
    """The token of a request's step."""
    words = philox(seed, step)
    r = words[0] | words[1] << 32
    reached = np.cumsum(mass)
    return int(np.searchsorted(reached, np.uint64(r * int(reached[-1]) >> 64), side="right"))
