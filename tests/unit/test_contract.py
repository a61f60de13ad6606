"""Every backend has the operations of kernels/contract.py, with the parameters named there, in that order."""

import inspect

import pytest
from xinfer.kernels.contract import OPS
from xinfer.kernels.ref import attention, embed, linear, norm, rope, sample

from xinfer.ops import CpuOps, Ops

REF = (embed, norm, linear, rope, attention, sample)


def names(function, skip: int = 0) -> tuple[str, ...]:
    return tuple(inspect.signature(function).parameters)[skip:]


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_backends_have_the_contract(op):
    from xinfer.ops_cuda import CudaOps

    meaning = next(getattr(module, op.name) for module in REF if hasattr(module, op.name))
    assert names(meaning) == op.names
    for backend in (Ops, CpuOps, CudaOps):
        assert names(getattr(backend, op.name), 1) == op.names, backend


def test_parameters_are_written_out():
    """Each is name:shape:type, at least one is written, and outputs come first."""
    for op in OPS:
        written = [p.startswith("!") for p in op.parameters]
        assert written[0] and written == sorted(written, reverse=True), op.name
        assert all(len(p.split(":")) >= 3 for p in op.parameters), op.name
