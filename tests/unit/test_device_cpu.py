"""The CPU device: transfers against numpy, alignment, fills, the pieces of host memory."""

import ctypes

import numpy as np
import pytest

from xinfer.device import open_device
from xinfer.device.cpu import pattern
from xinfer.device.host import HostPages, host_memory
from xinfer.errors import ConfigError, OutOfMemoryError
from xinfer.tensor import DType


@pytest.fixture
def device():
    with open_device("cpu") as cpu:
        yield cpu


def test_round_trip(device):
    values = np.arange(24, dtype=np.float32).reshape(4, 6)
    tensor = device.alloc(values.nbytes).view((4, 6), DType.F32)
    assert tensor.ptr % 256 == 0
    device.upload(tensor, values[:, ::-1])  # not contiguous
    assert (device.download(tensor) == values[:, ::-1]).all()
    assert (device.download(tensor.columns(1, 3)) == values[:, ::-1][:, 1:3]).all()
    other = device.alloc(values.nbytes).view((4, 6), DType.F32)
    device.copy(other, tensor)
    device.zero(tensor)
    assert (device.download(other) == values[:, ::-1]).all() and not device.download(tensor).any()


def test_sizes_must_agree(device):
    with pytest.raises(AssertionError):
        device.upload(device.alloc(8), np.zeros(3, np.float32))
    with pytest.raises(AssertionError):
        device.copy(device.alloc(8), device.alloc(9))


def test_host_memory_is_zeroed_and_mapped_is_itself(device):
    host = device.host_alloc(1000, mapped=True)
    assert not host.numpy().any() and device.mapped(host) is host


def test_out_of_memory_names_the_numbers(device):
    with pytest.raises(OutOfMemoryError, match=r"the KV cache: 1,152,921,504,606,846,976 bytes asked"):
        device.alloc(1 << 60, "the KV cache")


def test_events_and_graphs(device):
    first, second = device.event(timing=True), device.event(timing=True)
    first.record()
    second.record()
    assert second.seconds_since(first) >= 0 and first.done() and not device.supports_graphs


def test_memory_figures(device):
    assert 0 < device.free_bytes <= device.total_bytes


def test_unknown_kind():
    with pytest.raises(ConfigError, match="auto, cuda, cpu"):
        open_device("tpu")


def test_fills_are_sound(device):
    """Deviation 0.02, nothing beyond 0.07, small positive scales, all bytes: fill.py's docstring."""
    f32 = pattern("f32", 0, 200_000, 7).view(np.float32)
    assert abs(f32.std() - 0.02) < 2e-4 and abs(f32.mean()) < 2e-4 and np.abs(f32).max() < 0.07
    bits = pattern("bf16", 0, 200_000, 7).view(np.uint16).astype(np.uint32) << 16
    bf16 = bits.view(np.float32)
    assert abs(bf16.std() - 0.02) < 2e-4 and np.abs(bf16).max() < 0.07
    assert np.abs(np.corrcoef(bf16[::2], bf16[1::2])[0, 1]) < 0.01
    scales = pattern("scales", 0, 200_000, 7).view(np.float16)
    assert scales.min() >= 2**-10 and scales.max() < 2**-9
    counts = np.bincount(pattern("bytes", 0, 200_000, 7).view(np.uint8), minlength=256)
    assert counts.min() > 2800 and counts.max() < 3500
    other = pattern("f32", 0, 200_000, 8).view(np.float32)
    assert np.abs(np.corrcoef(f32, other)[0, 1]) < 0.01


def test_fill_does_not_depend_on_where_it_is_cut():
    far = (1 << 33) + 5  # past 2^32 words
    for kind in ("f32", "bf16", "scales", "bytes"):
        whole = pattern(kind, far, 100, 3)
        assert (whole[40:] == pattern(kind, far + 40, 60, 3)).all()
        assert (whole != pattern(kind, 5, 100, 3)).any()


def test_fill_of_odd_sizes(device):
    tensor = device.alloc(11)
    device.fill_random(tensor, 5)
    assert (device.download(tensor) == pattern("bytes", 0, 3, 5).view(np.uint8)[:11]).all()


def test_host_pages():
    pages = HostPages((5 << 20) + 3)
    assert pages.ptr % (2 << 20) == 0 and pages.nbytes % 4096 == 0
    pages.touch()
    ctypes.memset(pages.ptr + pages.nbytes - 1, 7, 1)
    assert ctypes.string_at(pages.ptr + pages.nbytes - 2, 2) == b"\0\7"
    pages.close()


def test_host_pages_that_do_not_fit():
    with pytest.raises(OutOfMemoryError, match="for experts: 4,611,686,018,427,387,904 bytes asked"):
        HostPages(1 << 62, "experts")


def test_host_memory():
    total, available = host_memory()
    assert 0 < available <= total
