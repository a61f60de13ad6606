"""The arena against its promises: fixed addresses, disjoint regions, no growth after commit."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xinfer.device import open_device
from xinfer.device.arena import Arena
from xinfer.tensor import DType


@pytest.fixture
def device():
    with open_device("cpu") as cpu:
        yield cpu


def planned(device, tokens: int = 8) -> Arena:
    ws = Arena()
    for t in (1, tokens):  # the largest counts, in whatever order
        ws.take("x", (t, 33), DType.F32)
        ws.take("q", (t, 7), DType.BF16, overlay="scratch")
        ws.take("gate", (t, 100), DType.F32, overlay="scratch")
    ws.commit(device)
    return ws


def test_same_address_for_every_number_of_rows(device):
    ws = planned(device)
    full, part = ws.take("x", (8, 33), DType.F32), ws.take("x", (3, 33), DType.F32)
    assert full.ptr == part.ptr and part.shape == (3, 33) and part.dense
    full.numpy()[:] = 5.0
    assert (part.numpy() == 5.0).all()


def test_overlay_shares_and_others_do_not(device):
    ws = planned(device)
    x, q, gate = (
        ws.take("x", (8, 33), DType.F32),
        ws.take("q", (8, 7), DType.BF16),
        ws.take("gate", (8, 100), DType.F32),
    )
    assert q.ptr == gate.ptr
    assert x.ptr + x.nbytes <= gate.ptr or gate.ptr + gate.nbytes <= x.ptr
    assert ws.nbytes == 1280 + 3328  # 8*33*4 and 8*100*4, each up to the next 256


def test_beyond_the_plan_is_refused(device):
    ws = planned(device)
    with pytest.raises(AssertionError, match=r"'x': \(9, 33\) is 1,188 bytes, planned 1,056"):
        ws.take("x", (9, 33), DType.F32)
    with pytest.raises(AssertionError, match="'y'"):
        ws.take("y", (1,), DType.F32)


def test_high_water_follows_what_was_taken(device):
    ws = planned(device)
    assert ws.high_water == 0
    ws.take("x", (1, 33), DType.F32)
    assert ws.high_water == 256
    ws.take("gate", (8, 100), DType.F32)
    ws.take("x", (8, 33), DType.F32)
    before = ws.high_water
    ws.take("x", (2, 33), DType.F32)
    assert before == ws.high_water == ws.nbytes
    ws.check()


def test_before_commit_there_is_no_memory():
    ws = Arena()
    assert ws.take("x", (2, 3), DType.F32).ptr == 0 and ws.nbytes == 256
    ws.take("x", (1, 3), DType.F32)
    with pytest.raises(AssertionError, match="overlay"):
        ws.take("x", (1, 3), DType.F32, overlay="late")


NAMES = st.tuples(st.sampled_from("abcdef"), st.integers(0, 5000))


@settings(max_examples=60, deadline=None)
@given(takes=st.lists(NAMES, min_size=1, max_size=20), overlaid=st.sets(st.sampled_from("abcdef")))
def test_regions_against_a_model(takes, overlaid):
    """Model: each name alone holds its largest size, names of the overlay hold one region among them."""
    ws, largest = Arena(), {}
    for name, size in takes:
        ws.take(name, (size,), DType.U8, overlay="o" if name in overlaid else "")
        largest[name] = max(largest.get(name, 0), size)
    with open_device("cpu") as device:
        ws.commit(device)
        ws.check()
        spans = []
        for name, size in largest.items():
            tensor = ws.take(name, (size,), DType.U8)
            assert tensor.ptr % 256 == 0
            assert ws.memory.ptr <= tensor.ptr and tensor.ptr + size <= ws.memory.ptr + ws.memory.nbytes
            spans.append((tensor.ptr, tensor.ptr + size, name))
        for a, b, first in spans:
            for c, d, second in spans:
                if first != second and not {first, second} <= overlaid:
                    assert b <= c or d <= a, (first, second)
        ws.check()
        assert ws.high_water == ws.nbytes
