"""Gated activations, used by every matmul that ends in one: act(gate) * up in f32, written in exact
operations so that all kernels round alike."""

from numba import float32

from .ptx import add_rn, device, ex2, mul_rn, rcp

_LOG2E = 1.4426950408889634
_SQRT_2_OVER_PI = 0.7978845608028654


@device
def sigmoid(x):
    """1 / (1 + exp(-x))."""
    return rcp(add_rn(float32(1.0), ex2(mul_rn(x, float32(-_LOG2E)))))


@device
def silu_glu(gate, up):
    """silu(gate) * up, silu(x) = x sigmoid(x)."""
    return mul_rn(mul_rn(gate, sigmoid(gate)), up)


@device
def gelu_tanh_glu(gate, up):
    """gelu_tanh(gate) * up; 0.5 (1 + tanh u) = sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3)."""
    cube = mul_rn(mul_rn(gate, gate), gate)
    u2 = mul_rn(add_rn(gate, mul_rn(float32(0.044715), cube)), float32(2.0 * _SQRT_2_OVER_PI))
    return mul_rn(mul_rn(gate, sigmoid(u2)), up)


ACTIVATIONS = ("silu", "gelu_tanh")  # their numbers are the `mode` of a gated matmul


@device
def glu(gate, up, mode):
    """The activation of that number."""
    if mode == 0:
        return silu_glu(gate, up)
    return gelu_tanh_glu(gate, up)
