"""Norms on the CPU: one loop a row, so that a row's bits are its own."""

import math

import numba
import numpy as np


@numba.njit(fastmath={"reassoc", "contract", "nsz"}, cache=True, inline="never")
def square_sum(x):
    total = np.float32(0)
    for k in range(x.shape[0]):
        total += x[k] * x[k]
    return total


@numba.njit(cache=True)
def rmsnorm(out, x, rows, weight, eps, add):
    """out[i] = norm of x[rows[i]], added if `add`; zeros where rows[i] is negative."""
    dim = x.shape[1]
    for i in range(rows.shape[0]):
        if rows[i] < 0:
            out[i] = 0
            continue
        row = x[rows[i]]
        mean = square_sum(row) / np.float32(dim)
        factor = np.float32(1) / np.float32(math.sqrt(mean + np.float32(eps)))
        for e in range(dim):
            y = row[e] * factor * weight[e]
            out[i, e] = out[i, e] + y if add else y
