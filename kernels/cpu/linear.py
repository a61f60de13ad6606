"""Matrix products on the CPU: f32, every element of the result computed by one compiled loop.

The loop makes four sums at once: four tokens share the weights that are loaded, or, for the tokens left over,
four weight rows share a token. A product commutes and the order of additions is the loop's, so an element's
bits do not depend on which of the two it was, nor on how many tokens there are. Rows are spread over cores.
"""

import math

import numba
import numpy as np

RUN = 8  # gate rows, then as many up rows
FOUR = 4
BLOCK = 16  # output rows a task, a multiple of 2*RUN: their weights stay in cache while the tokens pass


@numba.njit(fastmath={"reassoc", "contract", "nsz"}, cache=True, inline="never")
def dot4(w, x0, x1, x2, x3):
    """Four sums over k of w[k] * x[k]; the order of additions is the vectoriser's, the same in each."""
    a = b = c = d = np.float32(0)
    for k in range(w.shape[0]):
        a += w[k] * x0[k]
        b += w[k] * x1[k]
        c += w[k] * x2[k]
        d += w[k] * x3[k]
    return a, b, c, d


@numba.njit(parallel=True, cache=True)
def product(out, x, weight):
    """out f32 [T,N] = x f32 [T,K] weight f32 [N,K]^T."""
    tokens, n = x.shape[0], weight.shape[0]
    whole = tokens // FOUR * FOUR
    for block in numba.prange((n + BLOCK - 1) // BLOCK):
        first, end = block * BLOCK, min(block * BLOCK + BLOCK, n)
        for t in range(0, whole, FOUR):
            for i in range(first, end):
                a, b, c, d = dot4(weight[i], x[t], x[t + 1], x[t + 2], x[t + 3])
                out[t, i], out[t + 1, i], out[t + 2, i], out[t + 3, i] = a, b, c, d
        for t in range(whole, tokens):
            for i in range(first, end, FOUR):
                i1, i2, i3 = min(i + 1, end - 1), min(i + 2, end - 1), min(i + 3, end - 1)
                a, b, c, d = dot4(x[t], weight[i], weight[i1], weight[i2], weight[i3])
                out[t, i3], out[t, i2], out[t, i1], out[t, i] = d, c, b, a


@numba.njit(cache=True)
def silu(x):
    return x / (np.float32(1) + np.float32(math.exp(-x)))


@numba.njit(cache=True)
def gelu_tanh(x):
    inner = np.float32(0.7978845608028654) * (x + np.float32(0.044715) * x * x * x)
    return np.float32(0.5) * x * (np.float32(1) + np.float32(math.tanh(inner)))


@numba.njit(parallel=True, cache=True)
def gate(out, y, gelu):
    """out f32 [T,I] = act(gate) * up of y f32 [T,2I] in runs of 8."""
    for t in numba.prange(out.shape[0]):
        for i in range(out.shape[1]):
            at = i // RUN * 2 * RUN + i % RUN
            g, up = y[t, at], y[t, at + RUN]
            out[t, i] = (gelu_tanh(g) if gelu else silu(g)) * up


def linear(out, x, weight, bias=None, add=False) -> None:
    """out f32 [T,N] = x W^T + bias, or += that."""
    if not add and out.flags.c_contiguous:
        product(out, x, weight)
        if bias is not None:
            out += bias
        return
    y = np.empty(out.shape, np.float32)
    product(y, x, weight)
    if bias is not None:
        y += bias
    out[:] = out + y if add else y


def linear_glu(out, x, weight, act) -> None:
    """out f32 [T,I]; weight f32 [2I,K]; act "silu" or "gelu_tanh"."""
    y = np.empty((x.shape[0], weight.shape[0]), np.float32)
    product(y, x, weight)
    gate(out, y, act == "gelu_tanh")
