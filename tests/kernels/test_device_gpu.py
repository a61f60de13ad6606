"""The CUDA device on a real GPU: transfers against numpy, fills against their NumPy meaning, graphs, pinned
memory."""

import threading
import time

import numpy as np
import pytest

from xinfer import device as devices
from xinfer.device.cpu import pattern
from xinfer.errors import OutOfMemoryError
from xinfer.tensor import DType

pytestmark = pytest.mark.skipif(not devices.cuda_available(), reason="no CUDA GPU here")


@pytest.fixture(scope="module")
def device():
    with devices.open_device("cuda") as opened:
        yield opened


def test_what_the_device_says(device):
    assert device.name and device.sm >= 80 and device.target <= device.sm and device.processors > 0
    assert 0 < device.free_bytes <= device.total_bytes


def test_alloc_and_free(device):
    before = device.free_bytes
    tensor = device.alloc(256 << 20)
    assert tensor.ptr % 256 == 0 and device.free_bytes <= before - (256 << 20)
    device.free(tensor)
    assert device.free_bytes >= before - (4 << 20)


def test_out_of_memory(device):
    with pytest.raises(OutOfMemoryError, match="bytes asked"):
        device.alloc(1 << 45)
    device.alloc(100)  # and the device goes on


@pytest.mark.parametrize("nbytes", [1, 255, 100_003, 8 << 20, (50 << 20) + 1])
def test_upload_download(device, nbytes):
    values = np.random.default_rng(nbytes).integers(0, 256, nbytes, np.uint8)
    tensor = device.alloc(nbytes)
    device.zero(tensor)
    device.upload(tensor, values)
    assert (device.download(tensor) == values).all()
    device.free(tensor)


def test_download_of_columns(device):
    values = np.arange(24, dtype=np.float32).reshape(4, 6)
    tensor = device.alloc(values.nbytes).view((4, 6), DType.F32)
    device.upload(tensor, values)
    assert (device.download(tensor.columns(2, 5)) == values[:, 2:5]).all()


def test_uploads_of_many_threads(device):
    arrays = [np.random.default_rng(i).integers(0, 256, (3 << 20) * i + i, np.uint8) for i in range(1, 9)]
    tensors = [device.alloc(a.nbytes) for a in arrays]
    threads = [threading.Thread(target=device.upload, args=pair) for pair in zip(tensors, arrays)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for tensor, array in zip(tensors, arrays):
        assert (device.download(tensor) == array).all()
        device.free(tensor)


def test_upload_speed(device):
    """Prints; fails only when something is badly wrong (a pageable copy reaches some 5 GB/s)."""
    source = np.ones(2 << 30, np.uint8)
    tensor = device.alloc(source.nbytes)
    device.upload(tensor, source)
    device.synchronize()
    start = time.perf_counter()
    device.upload(tensor, source)
    device.synchronize()
    speed = source.nbytes / (time.perf_counter() - start) / 1e9
    device.free(tensor)
    print(f"upload {speed:.1f} GB/s with {device.uploader.threads} threads")
    assert speed > 1


@pytest.mark.parametrize("nbytes", [1000, 5 << 20])
def test_pinned_and_mapped_round_trip(device, nbytes):
    """Host memory to the GPU and back by plain copies, and by the address that kernels use."""
    host, back, gpu = device.host_alloc(nbytes, mapped=True), device.host_alloc(nbytes), device.alloc(nbytes)
    assert not host.numpy().any()
    host.numpy()[:] = np.arange(nbytes, dtype=np.uint64).astype(np.uint8)
    device.copy(gpu, host)
    device.copy(back, gpu)
    device.synchronize(device.stream)
    assert (back.numpy() == host.numpy()).all()
    device.fill_random(device.mapped(host), 9)  # a kernel writes host memory
    device.synchronize(device.stream)
    assert (host.numpy() == pattern("bytes", 0, nbytes // 4, 9).view(np.uint8)).all()
    for tensor in (host, back, gpu):
        device.free(tensor)


@pytest.mark.parametrize("kind", ["f32", "bf16", "scales", "bytes"])
@pytest.mark.parametrize("nbytes", [1, 7, 4096, 3_000_002])
def test_fill_has_the_bits_of_its_meaning(device, kind, nbytes):
    tensor = device.alloc(nbytes + 1)
    device.zero(tensor)
    device.fill_random(tensor.rows(0, nbytes), 2**40 + 12345, kind=kind)
    got = device.download(tensor)
    wanted = pattern(kind, 0, -(-nbytes // 4), 2**40 + 12345).view(np.uint8)[:nbytes]
    assert (got[:nbytes] == wanted).all() and got[nbytes] == 0
    device.free(tensor)


def test_graph_replay(device):
    """A captured graph reads its inputs anew at each replay."""
    source, middle = device.host_alloc(1 << 16), device.alloc(1 << 16)
    target = device.alloc(1 << 16)
    device.fill_random(target, 1)  # loads the kernel, which a capture must not do
    with device.capture() as graph:
        device.copy(middle, source)
        device.copy(target, middle)
        device.fill_random(middle, 3)
    assert graph.nodes == 3
    for value in (1, 2, 3):
        source.numpy()[:] = value
        graph.replay()
        device.synchronize(device.stream)
        assert (device.download(target) == value).all()
        assert (device.download(middle) == pattern("bytes", 0, 1 << 14, 3).view(np.uint8)).all()
    graph.close()


def test_work_of_other_threads_during_a_capture(device):
    tensor, outcome = device.alloc(1 << 20), []

    def allocate() -> None:
        outcome.append(device.alloc(1 << 20))

    with device.capture() as graph:
        device.zero(tensor)
        thread = threading.Thread(target=allocate)
        thread.start()
        thread.join()
    assert len(outcome) == 1 and graph.nodes == 1


def test_failure_inside_a_capture_leaves_the_stream_usable(device):
    with pytest.raises(ValueError, match="mine"), device.capture():
        raise ValueError("mine")
    tensor = device.alloc(64)
    device.zero(tensor)
    assert not device.download(tensor).any()


def test_events(device):
    start, end = device.event(timing=True), device.event(timing=True)
    big = device.alloc(1 << 30)
    start.record()
    device.zero(big)
    end.record()
    end.synchronize()
    assert start.done() and 1e-5 < end.seconds_since(start) < 1
    device.free(big)


def test_streams_are_ordered_by_events(device):
    source, target, done = device.alloc(256 << 20), device.alloc(256 << 20), device.event()
    device.fill_random(source, 4)
    done.record()
    done.wait(device.copy_stream)
    device.copy(target, source, stream=device.copy_stream)
    device.synchronize(device.copy_stream)
    assert (device.download(target.rows(0, 4000)) == pattern("bytes", 0, 1000, 4).view(np.uint8)).all()
    device.free(source)
    device.free(target)


def test_open_and_close_again():
    for _ in range(2):
        with devices.open_device("cuda") as second:
            tensor = second.alloc(100)
            second.upload(tensor, np.full(100, 3, np.uint8))
            assert (second.download(tensor) == 3).all()
