"""One NVIDIA GPU through the driver API: memory, pinned host memory, streams, events, graphs.

The only file of xinfer that imports cuda.bindings. Every driver call goes through `check`. The primary
context is current per thread: each verb makes it so (a comparison when it already is).
"""

import contextlib
import functools
import threading
from collections.abc import Iterator

import numpy as np
from cuda.bindings import driver

from xinfer.errors import DeviceError, OutOfMemoryError, UnsupportedError, XinferError
from xinfer.kernels.cuda.build import TARGETS
from xinfer.tensor import DType, Tensor

from .base import ALIGNMENT, FILLS, Allocation
from .host import HostPages, host_memory, lock_limit
from .upload import Uploader

_SMALL_HOST = 1 << 20  # bytes; below it cuMemHostAlloc, above it huge pages that are then registered
_current = threading.local()  # .context: handle of the context this file last made current in the thread
_REMEDIES = {
    "CUDA_ERROR_NO_DEVICE": "no GPU is visible: check nvidia-smi and CUDA_VISIBLE_DEVICES, or run on the CPU",
    "CUDA_ERROR_INVALID_DEVICE": "there is no GPU of that number: check nvidia-smi and CUDA_VISIBLE_DEVICES",
    "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH": "driver and kernel module differ: reboot or reinstall the driver",
    "CUDA_ERROR_INSUFFICIENT_DRIVER": "install driver 580 or newer",
    "CUDA_ERROR_NO_BINARY_FOR_GPU": "a cubin of another GPU: empty the kernel cache folder",
    "CUDA_ERROR_ILLEGAL_ADDRESS": "a kernel left its tensors: a bug in xinfer, please report it",
    "CUDA_ERROR_MISALIGNED_ADDRESS": "a kernel used an unaligned address: a bug in xinfer, please report it",
    "CUDA_ERROR_ECC_UNCORRECTABLE": "GPU memory is faulty: reset the GPU, look at nvidia-smi -q -d ECC",
}


def check(result: tuple, what: str, nbytes: int = 0):
    """The value of a driver call (a tuple if it has several). Raises OutOfMemoryError with `nbytes` asked and
    what is free, or DeviceError with the call, the status and what to do."""
    status = driver.CUresult(result[0])
    if status == driver.CUresult.CUDA_SUCCESS:
        return None if len(result) == 1 else result[1] if len(result) == 2 else result[1:]
    if status == driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
        info = driver.cuMemGetInfo()
        free, total = (info[1], info[2]) if info[0] == driver.CUresult.CUDA_SUCCESS else (0, 0)
        asked = f"{nbytes:,} bytes asked, " if nbytes else "out of memory, "
        raise OutOfMemoryError(
            f"{what}: {asked}{free:,} of {total:,} bytes free on the GPU; use a smaller context length or "
            "batch, or end other processes on the GPU (nvidia-smi)"
        )
    remedy = _REMEDIES.get(status.name)
    raise DeviceError(f"{what}: {status.name}" + (f"; {remedy}" if remedy else ""))


def _pinned(result: tuple, what: str, nbytes: int):
    """`check` for calls that lock host memory: the limits that matter are the host's."""
    status = driver.CUresult(result[0])
    if status == driver.CUresult.CUDA_SUCCESS:
        return check(result, what)
    total, free = host_memory()
    kind = OutOfMemoryError if status == driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY else DeviceError
    raise kind(
        f"{what}: {status.name}; {nbytes:,} bytes of host memory asked, {free:,} of {total:,} available, "
        f"limit on locked memory {lock_limit()}; raise it (ulimit -l unlimited, docker --ulimit memlock=-1) "
        "or keep less on the host"
    )


def available() -> bool:
    """Whether a driver and a GPU answer; never raises."""
    try:
        if driver.cuInit(0)[0] != driver.CUresult.CUDA_SUCCESS:
            return False
        status, count = driver.cuDeviceGetCount()
    except (RuntimeError, OSError):  # no driver library
        return False
    return status == driver.CUresult.CUDA_SUCCESS and count > 0


def kernel_target(sm: int) -> int:
    """The target whose machine code runs on `sm`: the highest of its major version that is not above it."""
    fitting = [t for t in TARGETS if t // 10 == sm // 10 and t <= sm]
    if not fitting:
        known = ", ".join(map(str, TARGETS))
        raise UnsupportedError(
            f"GPUs of compute capability {sm / 10} are not supported; kernels exist for sm {known}"
        )
    return max(fitting)


class CudaEvent:
    """See device/base.py."""

    def __init__(self, device: "CudaDevice", timing: bool) -> None:
        flags = driver.CUevent_flags
        flag = flags.CU_EVENT_DEFAULT if timing else flags.CU_EVENT_DISABLE_TIMING
        self.device = device
        self.handle = check(driver.cuEventCreate(int(flag)), "cuEventCreate")

    def record(self, stream: int | None = None) -> None:
        check(driver.cuEventRecord(self.handle, self.device.on(stream)), "cuEventRecord")

    def wait(self, stream: int | None = None) -> None:
        check(driver.cuStreamWaitEvent(self.device.on(stream), self.handle, 0), "cuStreamWaitEvent")

    def done(self) -> bool:
        self.device.use()
        result = driver.cuEventQuery(self.handle)
        if result[0] == driver.CUresult.CUDA_ERROR_NOT_READY:
            return False
        check(result, "cuEventQuery")
        return True

    def synchronize(self) -> None:
        self.device.use()
        check(driver.cuEventSynchronize(self.handle), "cuEventSynchronize")

    def seconds_since(self, start: "CudaEvent") -> float:
        self.device.use()
        return check(driver.cuEventElapsedTime(start.handle, self.handle), "cuEventElapsedTime") / 1e3

    def close(self) -> None:
        if self.handle is not None:
            self.device.use()
            driver.cuEventDestroy(self.handle)
            self.device.parts.pop(self, None)
            self.handle = None


class CudaGraph:
    """An executable graph; empty until its capture block has ended."""

    def __init__(self, device: "CudaDevice") -> None:
        self.device, self.handle, self.nodes = device, None, 0

    def replay(self, stream: int | None = None) -> None:
        check(driver.cuGraphLaunch(self.handle, self.device.on(stream)), "cuGraphLaunch")

    def close(self) -> None:
        if self.handle is not None:
            self.device.use()
            driver.cuGraphExecDestroy(self.handle)
            self.device.parts.pop(self, None)
            self.handle = None


class CudaDevice:
    """See device/base.py. `library` holds the kernels that were built for this GPU."""

    kind = "cuda"
    supports_graphs = True

    def __init__(self, index: int = 0) -> None:
        try:
            check(driver.cuInit(0), "starting CUDA (cuInit)")
        except RuntimeError as error:
            raise DeviceError(
                f"no CUDA driver ({error}); install the NVIDIA driver, or run on the CPU"
            ) from error
        count = check(driver.cuDeviceGetCount(), "cuDeviceGetCount")
        if not 0 <= index < count:
            raise DeviceError(
                f"GPU {index} was asked for, {count} visible; check nvidia-smi and CUDA_VISIBLE_DEVICES"
            )
        self.index = index
        self.device = check(driver.cuDeviceGet(index), f"opening GPU {index}")
        name = check(driver.cuDeviceGetName(96, self.device), "cuDeviceGetName")
        self.name = name.split(b"\0")[0].decode()
        major, minor = (self._attribute(f"COMPUTE_CAPABILITY_{part}") for part in ("MAJOR", "MINOR"))
        self.sm = 10 * major + minor
        self.target = kernel_target(self.sm)
        self.processors = self._attribute("MULTIPROCESSOR_COUNT")
        self.context = check(driver.cuDevicePrimaryCtxRetain(self.device), f"context on GPU {index}")
        self.context_id = int(self.context)
        self.allocations: dict[int, Allocation] = {}
        self.parts: dict[object, None] = {}  # open events and graphs, oldest first
        self.fill_lock = threading.Lock()  # a kernel's argument cells belong to one thread at a time
        self.use()
        lowest, highest = check(driver.cuCtxGetStreamPriorityRange(), "cuCtxGetStreamPriorityRange")
        self.stream = self._stream(highest)
        self.copy_stream = self._stream(lowest)
        self.uploader = Uploader(self)

    def _attribute(self, name: str) -> int:
        attribute = getattr(driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return check(driver.cuDeviceGetAttribute(attribute, self.device), f"reading {name}")

    def _stream(self, priority: int) -> int:
        flag = int(driver.CUstream_flags.CU_STREAM_NON_BLOCKING)
        return int(check(driver.cuStreamCreateWithPriority(flag, priority), "cuStreamCreateWithPriority"))

    def use(self) -> None:
        if getattr(_current, "context", 0) != self.context_id:
            assert self.context_id >= 0, "the device was closed"
            check(driver.cuCtxSetCurrent(self.context), "cuCtxSetCurrent")
            _current.context = self.context_id

    def on(self, stream: int | None) -> int:
        """The stream meant by an optional argument, ready for a driver call of this thread."""
        self.use()
        return self.stream if stream is None else stream

    @functools.cached_property
    def library(self):
        """The Library of kernels for this GPU's target; its folders come from xinfer/env.py."""
        from xinfer import env
        from xinfer.kernels.cuda.launch import Library

        self.use()
        settings = env.load()
        return Library(self.target, settings.cache / "cubins", settings.prebuilt)

    # Memory

    @property
    def total_bytes(self) -> int:
        self.use()
        return check(driver.cuMemGetInfo(), "cuMemGetInfo")[1]

    @property
    def free_bytes(self) -> int:
        self.use()
        return check(driver.cuMemGetInfo(), "cuMemGetInfo")[0]

    def alloc(self, nbytes: int, what: str = "") -> Tensor:
        self.use()
        size = -(-max(nbytes, 1) // ALIGNMENT) * ALIGNMENT
        ptr = int(check(driver.cuMemAlloc(size), f"GPU memory for {what or 'a tensor'}", size))
        assert ptr % ALIGNMENT == 0, ptr
        return self._own(Allocation(ptr, size, ptr), nbytes)

    def host_alloc(self, nbytes: int, *, mapped: bool = False, what: str = "") -> Tensor:
        self.use()
        if nbytes >= _SMALL_HOST:
            return self._own(self._register(nbytes, mapped, what), nbytes)
        flags = driver.CU_MEMHOSTALLOC_PORTABLE | (driver.CU_MEMHOSTALLOC_DEVICEMAP if mapped else 0)
        size = max(nbytes, ALIGNMENT)
        result = driver.cuMemHostAlloc(size, flags)
        ptr = int(_pinned(result, f"cuMemHostAlloc for {what or 'a buffer'}", size))
        tensor = self._own(Allocation(ptr, size, self._seen(ptr) if mapped else 0, pinned=True), nbytes)
        tensor.numpy()[:] = 0
        return tensor

    def _register(self, nbytes: int, mapped: bool, what: str) -> Allocation:
        pages = HostPages(nbytes, what)
        pages.touch()
        flags = driver.CU_MEMHOSTREGISTER_PORTABLE | (driver.CU_MEMHOSTREGISTER_DEVICEMAP if mapped else 0)
        try:
            result = driver.cuMemHostRegister(pages.ptr, pages.nbytes, flags)
            _pinned(result, f"cuMemHostRegister for {what or 'a buffer'}", nbytes)
        except XinferError:
            pages.close()
            raise
        return Allocation(pages.ptr, pages.nbytes, self._seen(pages.ptr) if mapped else 0, pages)

    def _seen(self, ptr: int) -> int:
        """Where kernels see mapped host memory; the host's own address on every GPU measured so far."""
        return int(check(driver.cuMemHostGetDevicePointer(ptr, 0), "cuMemHostGetDevicePointer"))

    def _own(self, allocation: Allocation, nbytes: int) -> Tensor:
        self.allocations[allocation.ptr] = allocation
        return Tensor(allocation.ptr, (nbytes,), DType.U8, 0, allocation)

    def mapped(self, tensor: Tensor) -> Tensor:
        owner = tensor.owner
        assert isinstance(owner, Allocation) and owner.device_ptr, "not memory that kernels can address"
        ptr = tensor.ptr - owner.ptr + owner.device_ptr
        return Tensor(ptr, tensor.shape, tensor.dtype, tensor.ld, owner)

    def free(self, tensor: Tensor) -> None:
        owner = tensor.owner
        assert isinstance(owner, Allocation) and self.allocations.pop(owner.ptr, None) is owner, "freed twice"
        self.use()
        check(self._release(owner), "freeing memory")

    @staticmethod
    def _release(owner: Allocation) -> tuple:
        if owner.pages is not None:
            result = driver.cuMemHostUnregister(owner.ptr)
            owner.pages.close()
            return result
        return driver.cuMemFreeHost(owner.ptr) if owner.pinned else driver.cuMemFree(owner.ptr)

    # Transfers

    def upload(self, dst: Tensor, array: np.ndarray) -> None:
        assert dst.dense and dst.nbytes == array.nbytes, (dst.shape, dst.dtype, array.shape, array.dtype)
        if not array.nbytes:
            return
        array = np.ascontiguousarray(array)
        self._order(self.stream, self.copy_stream)
        self.uploader.upload(dst.ptr, array.ctypes.data, array.nbytes)
        self._order(self.copy_stream, self.stream)

    def _order(self, first: int, then: int) -> None:
        """Later work of stream `then` waits for what is on `first` now."""
        event = self.event()
        event.record(first)
        event.wait(then)
        event.close()

    def download(self, src: Tensor) -> np.ndarray:
        rows = src.shape[0] if src.shape else 1
        host = np.empty((rows - 1) * src.ld + src.size // rows if src.size else 0, src.dtype.numpy)
        if host.size:
            self.use()
            check(driver.cuMemcpyAsync(host.ctypes.data, src.ptr, host.nbytes, self.stream), "download")
            self.synchronize(self.stream)
        if src.dense:
            return host.reshape(src.shape)
        return Tensor(host.ctypes.data, src.shape, src.dtype, src.ld).numpy().copy()

    def copy(self, dst: Tensor, src: Tensor, *, stream: int | None = None) -> None:
        assert dst.dense and src.dense and dst.nbytes == src.nbytes, (dst, src)
        if dst.nbytes:
            check(driver.cuMemcpyAsync(dst.ptr, src.ptr, dst.nbytes, self.on(stream)), "cuMemcpyAsync")

    def zero(self, tensor: Tensor, *, stream: int | None = None) -> None:
        assert tensor.dense, tensor.shape
        if tensor.nbytes:
            check(driver.cuMemsetD8Async(tensor.ptr, 0, tensor.nbytes, self.on(stream)), "cuMemsetD8Async")

    def fill_random(self, tensor: Tensor, seed: int, *, kind: str = "") -> None:
        from xinfer.kernels.cuda.fill import Fill

        assert tensor.dense, tensor.shape
        self.use()
        with self.fill_lock:
            Fill(self.library)(self.stream, tensor, kind or FILLS.get(tensor.dtype, "bytes"), seed)

    # Order and time

    def synchronize(self, stream: int | None = None) -> None:
        self.use()
        if stream is None:
            check(driver.cuCtxSynchronize(), "waiting for the GPU (cuCtxSynchronize)")
        else:
            check(driver.cuStreamSynchronize(stream), "waiting for a stream (cuStreamSynchronize)")

    def event(self, *, timing: bool = False) -> CudaEvent:
        self.use()
        event = CudaEvent(self, timing)
        self.parts[event] = None
        return event

    @contextlib.contextmanager
    def capture(self) -> Iterator[CudaGraph]:
        """Thread-local mode: other threads may go on calling the driver while this one captures."""
        self.use()
        graph, mode = CudaGraph(self), driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        check(driver.cuStreamBeginCapture(self.stream, mode), "cuStreamBeginCapture")
        try:
            yield graph
        except BaseException:
            result = driver.cuStreamEndCapture(self.stream)
            if result[0] == driver.CUresult.CUDA_SUCCESS:
                driver.cuGraphDestroy(result[1])
            raise
        template = check(driver.cuStreamEndCapture(self.stream), "cuStreamEndCapture")
        try:
            graph.nodes = check(driver.cuGraphGetNodes(template, 0), "cuGraphGetNodes")[1]
            graph.handle = check(driver.cuGraphInstantiate(template, 0), "cuGraphInstantiate")
        finally:
            driver.cuGraphDestroy(template)
        self.parts[graph] = None
        check(driver.cuGraphUpload(graph.handle, self.stream), "cuGraphUpload")

    def close(self) -> None:
        """Wait, then give back threads, graphs and events, kernels, memory, streams, context. After a failed
        kernel all these calls fail, too; its error was raised where it happened, theirs are ignored."""
        if self.context_id < 0:
            return
        self.use()
        driver.cuCtxSynchronize()
        with contextlib.suppress(DeviceError):
            self.uploader.close()
        for part in reversed(list(self.parts)):
            part.close()
        for function in self.__dict__["library"].functions.values() if "library" in self.__dict__ else ():
            driver.cuModuleUnload(function.module)
        for owner in reversed(list(self.allocations.values())):
            self._release(owner)
        self.allocations.clear()
        for stream in (self.copy_stream, self.stream):
            driver.cuStreamDestroy(stream)
        driver.cuDevicePrimaryCtxRelease(self.device)
        self.context_id, _current.context = -1, 0

    def __enter__(self) -> "CudaDevice":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
