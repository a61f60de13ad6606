"""attention, as it is defined here: a fold over blocks of 64 keys, which are the pages of the cache.

A block gives a state (m, l, o): s_j = scale * log2(e) * q.k_j, m = max s, p_j = 2^(s_j - m), 0 for hidden
keys, l = sum p, o = sum p_j v_j. States (arXiv 2307.08691's online softmax) are merged in ascending order of
position: m' = max, l' = l 2^(m-m') + l_b 2^(m_b-m'), o' likewise; the output is o / l. A key j is visible
from position p when j <= p and, with a window, j > p - window.
"""

import numpy as np

PAGE = 64
LOG2E = np.float32(1.4426950408889634)
NOTHING = np.float32(-1e30)  # m of a state without keys


def attention(out, q, k_cache, v_cache, page_table, q_start, kv_len, scale, window) -> None:
    """out [T,HE], q [T,H,E], caches [P,G,64,E], page_table i32 [B,M], q_start i32 [B+1], kv_len i32 [B].

    Token i of sequence b has position kv_len[b] - (q_start[b+1] - i); its keys are in the cache."""
    heads, dim = q.shape[1:]
    for b in range(len(kv_len)):
        for i in range(q_start[b], q_start[b + 1]):
            position = int(kv_len[b]) - (int(q_start[b + 1]) - i)
            for h in range(heads):
                g = h * k_cache.shape[1] // heads
                row = one_row(q[i, h], k_cache[:, g], v_cache[:, g], page_table[b], position, scale, window)
                out[i, h * dim : (h + 1) * dim] = row if kv_len[b] > 0 else 0


def one_row(q, keys, values, pages, position, scale, window) -> np.ndarray:
    """f32 [E] for one query f32 [E] over keys and values [P,64,E]."""
    m, l, o = NOTHING, np.float32(0), np.zeros(len(q), np.float32)
    first = max(0, position - window + 1) if window else 0
    for block in range(first // PAGE, position // PAGE + 1):
        at = block * PAGE + np.arange(PAGE)
        visible = (at <= position) & (at >= first)
        s = (keys[pages[block]] @ q) * (np.float32(scale) * LOG2E)
        m_b = s[visible].max()
        p = np.where(visible, np.exp2(s - m_b), np.float32(0))
        m_new = max(m, m_b)
        old, new = np.exp2(m - m_new), np.exp2(m_b - m_new)
        l = l * old + p.sum() * new
        o = o * old + (p @ values[pages[block]]) * new
        m = m_new
    return o / l if l > 0 else o
