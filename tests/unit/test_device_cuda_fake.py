"""The CUDA device against a recorded fake of the driver: messages, order of calls, rings, no GPU.

The fake answers from host memory: device addresses are addresses of host arrays, copies are done at once."""

import ctypes
import threading

import numpy as np
import pytest

from xinfer import device as devices
from xinfer.errors import DeviceError, OutOfMemoryError, UnsupportedError
from xinfer.tensor import DType, Tensor

cuda = pytest.importorskip("xinfer.device.cuda")
REAL = cuda.driver
OK = REAL.CUresult.CUDA_SUCCESS


class FakeDriver:
    """Types and constants are the real ones; functions are recorded and answer OK with a new handle, or what
    `answers` says (a status, or a whole result)."""

    def __init__(self) -> None:
        self.calls: list[tuple] = []
        self.answers: dict[str, object] = {}
        self.memory: dict[int, np.ndarray] = {}
        self.next = 0x1000
        self.sm = (9, 0)
        self.lock = threading.Lock()

    def __getattr__(self, name: str):
        if name.startswith("CU"):
            return getattr(REAL, name)
        if name.startswith("on_"):
            raise AttributeError(name)

        def call(*arguments):
            with self.lock:
                self.calls.append((name, *arguments))
            answer = self.answers.get(name)
            if isinstance(answer, tuple):
                return answer
            if answer is not None:
                return (answer,)
            return getattr(self, f"on_{name}", self.handle)(*arguments)

        return call

    def handle(self, *arguments):
        self.next += 0x1000
        return OK, self.next

    def names(self) -> list[str]:
        return [call[0] for call in self.calls]

    def on_cuDeviceGetCount(self):
        return OK, 1

    def on_cuDeviceGetName(self, size, device):
        return OK, b"Fake GPU\0\0"

    def on_cuDeviceGetAttribute(self, attribute, device):
        values = {"MAJOR": self.sm[0], "MINOR": self.sm[1], "COUNT": 132}
        return OK, values[attribute.name.rsplit("_", 1)[1]]

    def on_cuMemGetInfo(self):
        return OK, 123_456, 1_000_000

    def on_cuCtxGetStreamPriorityRange(self):
        return OK, 0, -5

    def on_cuMemAlloc(self, nbytes):
        array = np.full(nbytes + 256, 0xAA, np.uint8)
        ptr = -(-array.ctypes.data // 256) * 256
        self.memory[ptr] = array
        return OK, ptr

    def on_cuMemHostAlloc(self, nbytes, flags):
        return self.on_cuMemAlloc(nbytes)

    def on_cuMemFree(self, ptr):
        del self.memory[ptr]
        return (OK,)

    on_cuMemFreeHost = on_cuMemFree

    def on_cuMemcpyAsync(self, dst, src, nbytes, stream):
        ctypes.memmove(dst, src, nbytes)
        return (OK,)

    def on_cuMemsetD8Async(self, ptr, value, nbytes, stream):
        ctypes.memset(ptr, value, nbytes)
        return (OK,)

    def on_cuMemHostGetDevicePointer(self, ptr, flags):
        return OK, ptr + (1 << 40)

    def on_cuGraphGetNodes(self, graph, count):
        return OK, [], 17

    def on_cuEventElapsedTime(self, start, end):
        return OK, 2.5


@pytest.fixture
def fake(monkeypatch):
    driver = FakeDriver()
    monkeypatch.setattr(cuda, "driver", driver)
    monkeypatch.setattr(cuda, "_current", threading.local())
    return driver


@pytest.fixture
def device(fake):
    with cuda.CudaDevice() as opened:
        yield opened


STATUS = REAL.CUresult


def test_check_names_call_status_and_remedy(fake):
    with pytest.raises(DeviceError, match=r"copying x: CUDA_ERROR_INVALID_VALUE$"):
        cuda.check((STATUS.CUDA_ERROR_INVALID_VALUE,), "copying x")
    with pytest.raises(DeviceError, match="CUDA_ERROR_NO_DEVICE; no GPU is visible: check nvidia-smi"):
        cuda.check((STATUS.CUDA_ERROR_NO_DEVICE, None), "starting")


def test_check_returns_values(fake):
    assert cuda.check((OK,), "a") is None and cuda.check((OK, 5), "a") == 5
    assert cuda.check((OK, 5, 6), "a") == (5, 6)


def test_out_of_memory_names_bytes_and_remedy(device, fake):
    fake.answers["cuMemAlloc"] = STATUS.CUDA_ERROR_OUT_OF_MEMORY
    with pytest.raises(OutOfMemoryError) as error:
        device.alloc(5_000_000, "the KV cache")
    text = str(error.value)
    assert "GPU memory for the KV cache: 5,000,192 bytes asked, 123,456 of 1,000,000 bytes free" in text
    assert "smaller context length" in text and "\n" not in text


@pytest.mark.parametrize("nbytes, call", [(1000, "cuMemHostAlloc"), (3 << 20, "cuMemHostRegister")])
def test_pinning_failure_names_the_limit(device, fake, nbytes, call):
    fake.answers[call] = STATUS.CUDA_ERROR_OUT_OF_MEMORY
    with pytest.raises(OutOfMemoryError) as error:
        device.host_alloc(nbytes, what="experts")
    text = str(error.value)
    assert f"{call} for experts: CUDA_ERROR_OUT_OF_MEMORY; {nbytes:,} bytes of host memory asked" in text
    assert "limit on locked memory" in text and "ulimit -l" in text
    fake.answers[call] = STATUS.CUDA_ERROR_NOT_PERMITTED
    with pytest.raises(DeviceError, match="CUDA_ERROR_NOT_PERMITTED"):
        device.host_alloc(nbytes)


def test_no_driver_library(fake):
    def missing(*arguments):
        raise RuntimeError("libcuda not found")

    fake.on_cuInit = missing
    assert not cuda.available()
    with pytest.raises(DeviceError, match="install the NVIDIA driver, or run on the CPU"):
        cuda.CudaDevice()
    assert devices.open_device("auto").kind == "cpu"


def test_no_gpu(fake):
    fake.answers["cuInit"] = STATUS.CUDA_ERROR_NO_DEVICE
    assert not devices.cuda_available()
    with pytest.raises(DeviceError, match="no GPU is visible"):
        devices.open_device("cuda")


def test_index_out_of_range(fake):
    with pytest.raises(DeviceError, match="GPU 3 was asked for, 1 visible"):
        devices.open_device("cuda", 3)


def test_auto_takes_the_gpu(fake):
    with devices.open_device("auto") as opened:
        assert opened.kind == "cuda" and opened.name == "Fake GPU" and opened.sm == 90
        assert opened.processors == 132 and opened.free_bytes == 123_456 and opened.total_bytes == 1_000_000


@pytest.mark.parametrize(
    "sm, target", [(80, 80), (86, 86), (87, 86), (89, 89), (90, 90), (103, 100), (121, 120)]
)
def test_target_of_unlisted_gpus(sm, target):
    assert cuda.kernel_target(sm) == target


@pytest.mark.parametrize("sm", [75, 70, 110, 130])
def test_gpus_without_a_target(sm):
    with pytest.raises(UnsupportedError, match=rf"compute capability {sm / 10} .* 80, 86, 89, 90"):
        cuda.kernel_target(sm)


def test_streams_and_their_priorities(device, fake):
    assert [call[2] for call in fake.calls if call[0] == "cuStreamCreateWithPriority"] == [-5, 0]
    assert device.stream != device.copy_stream


def test_context_is_set_once_per_thread(device, fake):
    for _ in range(3):
        device.zero(device.alloc(16))
    assert fake.names().count("cuCtxSetCurrent") == 1
    thread = threading.Thread(target=lambda: (device.alloc(16), device.alloc(16)))
    thread.start()
    thread.join()
    assert fake.names().count("cuCtxSetCurrent") == 2


@pytest.mark.parametrize("nbytes", [0, 1, 4096, (8 << 20) - 1, 8 << 20, (40 << 20) + 12345])
def test_upload_download(device, nbytes):
    values = np.random.default_rng(nbytes).integers(0, 256, nbytes, np.uint8)
    tensor = device.alloc(nbytes)
    device.upload(tensor, values)
    assert (device.download(tensor) == values).all()


def test_upload_is_ordered_with_the_compute_stream(device, fake):
    tensor = device.alloc(64)
    device.upload(tensor, np.zeros(64, np.uint8))  # makes the ring
    fake.calls.clear()
    device.upload(tensor, np.zeros(64, np.uint8))
    kept = ("cuEventRecord", "cuStreamWaitEvent", "cuMemcpyAsync")
    order = [(c[0], c[-1] if c[0] != "cuStreamWaitEvent" else c[1]) for c in fake.calls if c[0] in kept]
    compute, copies = device.stream, device.copy_stream
    assert order == [
        ("cuEventRecord", compute), ("cuStreamWaitEvent", copies), ("cuMemcpyAsync", copies),
        ("cuEventRecord", copies), ("cuEventRecord", copies), ("cuStreamWaitEvent", compute),
    ]  # fmt: skip


def test_uploads_of_many_threads(device):
    device.uploader.piece = 1 << 16
    arrays = [np.random.default_rng(i).integers(0, 256, 300_000 + i, np.uint8) for i in range(12)]
    tensors = [device.alloc(a.nbytes) for a in arrays]
    threads = [threading.Thread(target=device.upload, args=pair) for pair in zip(tensors, arrays)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for tensor, array in zip(tensors, arrays):
        assert (device.download(tensor) == array).all()


def test_upload_error_reaches_the_caller(device, fake):
    device.uploader.piece = 1 << 16
    tensor = device.alloc(1 << 20)
    fake.answers["cuMemcpyAsync"] = STATUS.CUDA_ERROR_ILLEGAL_ADDRESS
    with pytest.raises(DeviceError, match="CUDA_ERROR_ILLEGAL_ADDRESS"):
        device.upload(tensor, np.zeros(1 << 20, np.uint8))
    fake.answers.clear()
    device.upload(tensor, np.ones(1 << 20, np.uint8))  # no buffer was lost
    assert device.download(tensor).all()


def test_download_of_columns(device):
    values = np.arange(24, dtype=np.float32).reshape(4, 6)
    tensor = device.alloc(values.nbytes).view((4, 6), DType.F32)
    device.upload(tensor, values)
    assert (device.download(tensor.columns(2, 5)) == values[:, 2:5]).all()
    assert device.download(tensor.rows(1, 1)).shape == (0, 6)


def test_mapped_addresses(device):
    for nbytes in (512, 3 << 20):
        host = device.host_alloc(nbytes, mapped=True)
        assert not host.numpy().any()
        assert device.mapped(host.rows(8, 16)).ptr == host.ptr + 8 + (1 << 40)
    with pytest.raises(AssertionError):
        device.mapped(device.host_alloc(512))


def test_capture_and_replay(device, fake):
    fake.calls.clear()
    with device.capture() as graph:
        device.zero(Tensor(device.alloc(64).ptr, (64,), DType.U8))
    graph.replay()
    wanted = ["Begin", "End", "Instantiate", "Destroy", "Upload", "Launch"]
    calls = [n for n in fake.names() if "Capture" in n or "Graph" in n]
    assert [w for n in calls for w in wanted if n.endswith((w, w + "Capture"))] == wanted
    mode = next(c[2] for c in fake.calls if c[0] == "cuStreamBeginCapture")
    assert mode.name == "CU_STREAM_CAPTURE_MODE_THREAD_LOCAL" and graph.nodes == 17


def test_failure_inside_a_capture_ends_it(device, fake):
    with pytest.raises(ValueError, match="mine"), device.capture():
        raise ValueError("mine")
    assert "cuStreamEndCapture" in fake.names() and "cuGraphInstantiate" not in fake.names()


def test_events(device, fake):
    start, end = device.event(timing=True), device.event(timing=True)
    assert end.seconds_since(start) == 0.0025
    fake.answers["cuEventQuery"] = STATUS.CUDA_ERROR_NOT_READY
    assert not start.done()
    fake.answers["cuEventQuery"] = STATUS.CUDA_ERROR_LAUNCH_FAILED
    with pytest.raises(DeviceError, match="cuEventQuery: CUDA_ERROR_LAUNCH_FAILED"):
        start.done()


def test_free_twice(device):
    tensor = device.alloc(10)
    device.free(tensor)
    with pytest.raises(AssertionError, match="freed twice"):
        device.free(tensor)


def test_close_gives_everything_back_in_order(fake):
    device = cuda.CudaDevice()
    device.alloc(100)
    device.host_alloc(100)
    device.host_alloc(2 << 20)
    device.event()
    with device.capture():
        pass
    device.upload(device.alloc(10), np.zeros(10, np.uint8))
    fake.calls.clear()
    device.close()
    device.close()
    names = fake.names()
    order = ["cuCtxSynchronize", "cuGraphExecDestroy", "cuMemHostUnregister", "cuMemFreeHost", "cuMemFree",
             "cuStreamDestroy", "cuDevicePrimaryCtxRelease"]  # fmt: skip
    last = [len(names) - 1 - names[::-1].index(name) for name in order]
    assert last == sorted(last) and names[0] == "cuCtxSynchronize" and names.count("cuMemHostUnregister") == 2
    assert not fake.memory and names.count("cuStreamDestroy") == 2
    with pytest.raises(AssertionError, match="closed"):
        device.alloc(1)


def test_close_after_a_failed_kernel_does_not_raise(fake):
    device = cuda.CudaDevice()
    device.upload(device.alloc(10), np.zeros(10, np.uint8))
    for call in (
        "cuCtxSynchronize",
        "cuMemHostUnregister",
        "cuMemFree",
        "cuEventDestroy",
        "cuEventSynchronize",
    ):
        fake.answers[call] = STATUS.CUDA_ERROR_ILLEGAL_ADDRESS
    device.close()
