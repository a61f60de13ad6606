"""Matrix products and gated activations."""

import numpy as np

RUN = 8  # gate rows, then as many up rows


def linear(out, x, weight, bias=None, add=False) -> None:
    """out f32 [T,N] = x f32 [T,K] weight f32 [N,K]^T + bias, or += that."""
    y = x @ weight.T
    if bias is not None:
        y = y + bias
    out[:] = out + y if add else y


def silu(x) -> np.ndarray:
    """x sigmoid(x)."""
    return x / (np.float32(1) + np.exp(-x))


def gelu_tanh(x) -> np.ndarray:
    """0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))."""
    inner = np.float32(0.7978845608028654) * (x + np.float32(0.044715) * x * x * x)
    return np.float32(0.5) * x * (np.float32(1) + np.tanh(inner))


ACTIVATIONS = {"silu": silu, "gelu_tanh": gelu_tanh}


def linear_glu(out, x, weight, act) -> None:
    """out [T,I] = act(gate) * up; weight f32 [2I,K] in runs of 8 gate rows and 8 up rows."""
    y = (x @ weight.T).reshape(len(x), -1, 2, RUN)
    out[:] = (ACTIVATIONS[act](y[:, :, 0]) * y[:, :, 1]).reshape(len(x), -1)
