"""The operations of kernels/contract.py, bound to a device. `make_ops` gives those of a device."""

from typing import Protocol

import numpy as np

from xinfer.device import Device
from xinfer.formats.weight import Weight
from xinfer.spec import ModelSpec
from xinfer.tensor import DType, Tensor


class Ops(Protocol):
    """Parameters, shapes and meanings: kernels/contract.py. Work is put on the device's compute stream."""

    def reserve(self, spec: ModelSpec, max_seqs: int, num_pages: int, weights: list[Weight]) -> None:
        """Take all scratch memory that the ops will need, and load their kernels; once, before the first
        op."""

    def embed(self, out, tokens, last, rows, table: Weight, scale: float) -> None: ...
    def rmsnorm(self, out, x, weight, eps: float) -> None: ...
    def rmsnorm_rows(self, out, x, rows, weight, eps: float) -> None: ...
    def rmsnorm_add(self, h, x, weight, eps: float) -> None: ...
    def linear(self, out, x, weight: Weight, bias: Tensor | None = None, add: bool = False) -> None: ...
    def linear_glu(self, out, x, weight: Weight, act: str) -> None: ...
    def rope_kv(
        self, q, k_cache, v_cache, qkv, cos_sin, positions, kv_slots, q_norm, k_norm, eps: float
    ) -> None: ...
    def attention(
        self, out, q, k_cache, v_cache, page_table, q_start, kv_len, scale: float, window: int
    ) -> None: ...
    def penalize(
        self, logits, counts, rows, repetition, frequency, presence, bias_ids, bias_values
    ) -> None: ...
    def sample(
        self, tokens, last, counts, logits, rows, temperature, top_p, min_p, top_k, seeds, steps
    ) -> None: ...
    def close(self) -> None: ...


class CpuOps:
    """Numba where it is worth it, else the NumPy meaning itself."""

    def __init__(self) -> None:
        from xinfer.kernels.cpu import attention, linear, norm
        from xinfer.kernels.ref import embed, sample

        self._attention, self._linear, self._norm, self._embed, self._sample = (
            attention, linear, norm, embed, sample,
        )  # fmt: skip

    def reserve(self, spec: ModelSpec, max_seqs: int, num_pages: int, weights: list[Weight]) -> None:
        pass

    def embed(self, out, tokens, last, rows, table, scale) -> None:
        parts = (part.numpy() for part in (out, tokens, last, rows, table.dense))
        self._embed.embed(*parts, scale)

    def rmsnorm(self, out, x, weight, eps) -> None:
        rows = np.arange(x.shape[0], dtype=np.int32)
        self._norm.rmsnorm(out.numpy(), x.numpy(), rows, weight.numpy(), eps, False)

    def rmsnorm_rows(self, out, x, rows, weight, eps) -> None:
        self._norm.rmsnorm(out.numpy(), x.numpy(), rows.numpy(), weight.numpy(), eps, False)

    def rmsnorm_add(self, h, x, weight, eps) -> None:
        rows = np.arange(x.shape[0], dtype=np.int32)
        self._norm.rmsnorm(h.numpy(), x.numpy(), rows, weight.numpy(), eps, True)

    def linear(self, out, x, weight, bias=None, add=False) -> None:
        assert x.shape[1] == weight.k and out.shape[1] == weight.n, (out.shape, x.shape, weight.n, weight.k)
        added = None if bias is None else bias.numpy()
        self._linear.linear(out.numpy(), x.numpy(), weight.dense.numpy(), added, add)

    def linear_glu(self, out, x, weight, act) -> None:
        assert x.shape[1] == weight.k and 2 * out.shape[1] == weight.n, (out.shape, x.shape, weight.n)
        self._linear.linear_glu(out.numpy(), x.numpy(), weight.dense.numpy(), act)

    def rope_kv(self, q, k_cache, v_cache, qkv, cos_sin, positions, kv_slots, q_norm, k_norm, eps) -> None:
        parts = (part.numpy() for part in (q, k_cache, v_cache, qkv, cos_sin, positions, kv_slots))
        none = np.empty(0, np.float32)
        norms = (none if norm is None else norm.numpy() for norm in (q_norm, k_norm))
        self._attention.rope_kv(*parts, *norms, eps)

    def attention(self, out, q, k_cache, v_cache, page_table, q_start, kv_len, scale, window) -> None:
        parts = (part.numpy() for part in (out, q, k_cache, v_cache, page_table, q_start, kv_len))
        self._attention.attention(*parts, scale, window)

    def penalize(self, logits, counts, rows, repetition, frequency, presence, bias_ids, bias_values) -> None:
        parts = (logits, counts, rows, repetition, frequency, presence, bias_ids, bias_values)
        self._sample.penalize(*(part.numpy() for part in parts))

    def sample(
        self, tokens, last, counts, logits, rows, temperature, top_p, min_p, top_k, seeds, steps
    ) -> None:
        parts = (tokens, last, counts, logits, rows, temperature, top_p, min_p, top_k, seeds, steps)
        self._sample.sample(*(part.numpy() for part in parts))

    def close(self) -> None:
        pass


def make_ops(device: Device, act: DType) -> Ops:
    """The ops of a device; `act`: type of matmul inputs and cache, bf16 or f32."""
    if device.kind == "cpu":
        assert act is DType.F32, act
        return CpuOps()
    from xinfer.ops_cuda import CudaOps

    return CudaOps(device, act)
