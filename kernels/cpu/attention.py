"""attention and rope_kv on the CPU: the definitions of kernels/ref, one query row at a time, rows spread over
cores."""

import math

import numba
import numpy as np

PAGE = 64
LOG2E = np.float32(1.4426950408889634)
NOTHING = np.float32(-1e30)


@numba.njit(fastmath={"reassoc", "contract", "nsz"}, cache=True, inline="never")
def dot(a, b):
    total = np.float32(0)
    for k in range(a.shape[0]):
        total += a[k] * b[k]
    return total


@numba.njit(cache=True)
def power2(x):
    return np.float32(math.exp(x * np.float32(0.6931471805599453)))


@numba.njit(cache=True)
def one_row(out, q, keys, values, pages, position, scale, window):
    """out f32 [E] for one query f32 [E] over keys and values [P,64,E] (see ref/attention.py)."""
    dim = q.shape[0]
    m, l = NOTHING, np.float32(0)
    o = np.zeros(dim, np.float32)
    part = np.empty(dim, np.float32)
    p = np.empty(PAGE, np.float32)
    first = max(0, position - window + 1) if window > 0 else 0
    for block in range(first // PAGE, position // PAGE + 1):
        page = pages[block]
        low, high = max(first - block * PAGE, 0), min(position - block * PAGE + 1, PAGE)
        m_b = NOTHING
        for j in range(low, high):
            p[j] = dot(q, keys[page, j]) * scale
            m_b = max(m_b, p[j])
        l_b = np.float32(0)
        part[:] = 0
        for j in range(low, high):
            p[j] = power2(p[j] - m_b)
            l_b += p[j]
            for e in range(dim):
                part[e] += p[j] * values[page, j, e]
        m_new = max(m, m_b)
        old, new = power2(m - m_new), power2(m_b - m_new)
        l = l * old + l_b * new
        for e in range(dim):
            o[e] = o[e] * old + part[e] * new
        m = m_new
    for e in range(dim):
        out[e] = o[e] / l


@numba.njit(parallel=True, cache=True)
def attention(out, q, k_cache, v_cache, page_table, q_start, kv_len, scale, window):
    """out [T,HE], q [T,H,E], caches [P,G,64,E], page_table i32 [B,M], q_start i32 [B+1], kv_len i32 [B]."""
    heads, dim = q.shape[1], q.shape[2]
    groups = k_cache.shape[1]
    of = np.empty(q.shape[0], np.int32)
    for b in range(kv_len.shape[0]):
        of[q_start[b] : q_start[b + 1]] = b
    for row in numba.prange(q.shape[0] * heads):
        i, h = row // heads, row % heads
        b = of[i]
        target = out[i, h * dim : (h + 1) * dim]
        if kv_len[b] == 0:
            target[:] = 0
        else:
            g = h * groups // heads
            position = kv_len[b] - (q_start[b + 1] - i)
            one_row(
                target, q[i, h], k_cache[:, g], v_cache[:, g], page_table[b], position,
                np.float32(scale) * LOG2E, window,
            )  # fmt: skip


@numba.njit(cache=True)
def norm_head(x, weight, eps):
    """x f32 [E] in place."""
    total = np.float32(0)
    for e in range(x.shape[0]):
        total += x[e] * x[e]
    factor = np.float32(1) / np.float32(math.sqrt(total / np.float32(x.shape[0]) + np.float32(eps)))
    for e in range(x.shape[0]):
        x[e] = x[e] * factor * weight[e]


@numba.njit(cache=True)
def rotate(x, cos_sin):
    """x f32 [E] in place, cos_sin f32 [R]."""
    half = cos_sin.shape[0] // 2
    for i in range(half):
        a, b = x[i], x[i + half]
        x[i] = a * cos_sin[i] - b * cos_sin[half + i]
        x[i + half] = b * cos_sin[i] + a * cos_sin[half + i]


@numba.njit(cache=True)
def rope_kv(q, k_cache, v_cache, qkv, cos_sin, positions, kv_slots, q_norm, k_norm, eps):
    """q [T,H,E] and caches [P,G,64,E] from qkv f32 [T,(H+2G)E]; norms f32 [E], or [0] for none."""
    heads, dim, groups = q.shape[1], q.shape[2], k_cache.shape[1]
    key = np.empty(dim, np.float32)
    for t in range(q.shape[0]):
        turn = cos_sin[positions[t]]
        for h in range(heads):
            q[t, h] = qkv[t, h * dim : (h + 1) * dim]
            if q_norm.shape[0]:
                norm_head(q[t, h], q_norm, eps)
            rotate(q[t, h], turn)
        if kv_slots[t] < 0:
            continue
        page, offset = kv_slots[t] // PAGE, kv_slots[t] % PAGE
        for g in range(groups):
            at = (heads + g) * dim
            key[:] = qkv[t, at : at + dim]
            if k_norm.shape[0]:
                norm_head(key, k_norm, eps)
            rotate(key, turn)
            k_cache[page, g, offset] = key
            v_cache[page, g, offset] = qkv[t, at + groups * dim : at + (groups + 1) * dim]
