"""Devices: `open_device("auto")` gives the GPU where there is one, else the CPU."""

from xinfer.errors import ConfigError, DeviceError

from .base import Device, Event, Graph

__all__ = ["Device", "Event", "Graph", "cuda_available", "open_device"]


def cuda_available() -> bool:
    """Whether a CUDA driver and at least one GPU answer. Never raises, allocates nothing on the GPU."""
    try:
        from .cuda import available
    except ImportError:
        return False
    return available()


def open_device(kind: str = "auto", index: int = 0) -> Device:
    """The device of a kind: "cuda" (GPU number `index`), "cpu", or "auto". Raises DeviceError where there is
    none."""
    if kind == "auto":
        kind = "cuda" if cuda_available() else "cpu"
    if kind == "cpu":
        from .cpu import CpuDevice

        return CpuDevice()
    if kind == "cuda":
        try:
            from .cuda import CudaDevice
        except ImportError as error:
            raise DeviceError(
                f"cuda-python cannot be imported ({error}); pip install 'cuda-python>=13,<14'"
            ) from error
        return CudaDevice(index)
    raise ConfigError(f"no device kind {kind!r}; known: auto, cuda, cpu")
