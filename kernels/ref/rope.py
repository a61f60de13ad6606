"""rope_kv: heads normed, rotated (arXiv 2104.09864, halves paired), keys and values put into their pages."""

import numpy as np

from .norm import normed

PAGE = 64


def rotate(x, cos_sin) -> np.ndarray:
    """x f32 [T,heads,E], cos_sin f32 [T,R]: the first R dims turned, pair i = (x_i, x_{i+R/2})."""
    half = cos_sin.shape[1] // 2
    cos, sin = cos_sin[:, None, :half], cos_sin[:, None, half:]
    first, second = x[..., :half], x[..., half : 2 * half]
    return np.concatenate(
        [first * cos - second * sin, second * cos + first * sin, x[..., 2 * half :]], axis=-1
    )


def rope_kv(q, k_cache, v_cache, qkv, cos_sin, positions, kv_slots, q_norm, k_norm, eps) -> None:
    """q [T,H,E] and caches [P,G,64,E] from qkv f32 [T,(H+2G)E]; slot -1 writes nothing."""
    tokens, heads, dim = q.shape
    groups = k_cache.shape[1]
    split = qkv.reshape(tokens, heads + 2 * groups, dim)
    queries, keys, values = np.split(split, [heads, heads + groups], axis=1)
    if q_norm is not None:
        queries = normed(queries, q_norm, eps)
    if k_norm is not None:
        keys = normed(keys, k_norm, eps)
    turn = cos_sin[positions]
    q[:] = rotate(queries, turn)
    here = kv_slots >= 0
    pages, offsets = kv_slots[here] // PAGE, kv_slots[here] % PAGE
    k_cache[pages, :, offsets] = rotate(keys, turn)[here]
    v_cache[pages, :, offsets] = values[here]
