"""Root mean square norms: x / sqrt(mean(x^2) + eps) * weight (arXiv 1910.07467)."""

import numpy as np


def normed(x, weight, eps) -> np.ndarray:
    """f32 [..., D] of x f32 [..., D]."""
    mean = np.mean(np.square(x), axis=-1, keepdims=True, dtype=np.float32)
    return x * (np.float32(1) / np.sqrt(mean + np.float32(eps))) * weight


def rmsnorm(out, x, weight, eps) -> None:
    """out [T,D] of x f32 [T,D]."""
    out[:] = normed(x, weight, eps)


def rmsnorm_rows(out, x, rows, weight, eps) -> None:
    """out [B,D] of x[rows], zeros where rows i32 [B] is negative."""
    out[:] = normed(x[np.maximum(rows, 0)], weight, eps)
    out[rows < 0] = 0


def rmsnorm_add(h, x, weight, eps) -> None:
    """h f32 [T,D] += norm of x f32 [T,D]."""
    h += normed(x, weight, eps)
