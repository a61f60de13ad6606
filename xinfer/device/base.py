"""What a device can do. Everything above this folder speaks to these verbs alone; there is a cpu and a cuda.

Addresses are plain integers inside Tensors. Work is ordered on streams (integer handles; `stream` for
compute, `copy_stream` for transfers); a call without a stream means the compute stream. Only `upload`,
`download`, `synchronize` and `Event.synchronize` make the host wait.
"""

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from xinfer.tensor import DType, Tensor

from .host import HostPages

ALIGNMENT = 256  # bytes; every allocation starts at a multiple of it
# What fill_random writes by default; bf16 and f32 are about N(0, 0.02), nothing is ever NaN or infinite.
FILLS = {DType.F32: "f32", DType.BF16: "bf16", DType.F16: "scales"}


@dataclass(slots=True, eq=False)
class Allocation:
    """Memory that a GPU device owns: `nbytes` at `ptr`; kernels see it at `device_ptr` (0: they do not). Of
    host memory, `pages` is set when it was registered, `pinned` when the driver allocated it."""

    ptr: int
    nbytes: int
    device_ptr: int = 0
    pages: HostPages | None = None
    pinned: bool = False


class Event(Protocol):
    """A point in a stream's work."""

    def record(self, stream: int | None = None) -> None:
        """Put the point after everything that is on the stream now."""

    def wait(self, stream: int | None = None) -> None:
        """Later work of the stream waits for the point; the host does not."""

    def done(self) -> bool:
        """Whether the point has been passed (true before the first record)."""

    def synchronize(self) -> None:
        """The host waits for the point."""

    def seconds_since(self, start: "Event") -> float:
        """Device time between two passed points; both events were made with timing."""

    def close(self) -> None:
        """Give the event back; `Device.close` does it for those that remain."""


class Graph(Protocol):
    """Work captured once, to be launched again as a whole."""

    def replay(self, stream: int | None = None) -> None: ...

    def close(self) -> None: ...


class Device(Protocol):
    """Memory, transfers, streams, events and graphs of one device.

    `sm`: compute capability times ten, 0 on the CPU. `target`: the sm that kernels are built for. Tensors
    from `alloc` and `host_alloc` are u8 [nbytes], hold an owner, and live until `free` or `close`."""

    kind: str  # "cuda" or "cpu"
    name: str
    sm: int
    target: int
    processors: int  # streaming multiprocessors, or CPU cores
    supports_graphs: bool
    stream: int
    copy_stream: int

    @property
    def total_bytes(self) -> int: ...

    @property
    def free_bytes(self) -> int: ...

    def alloc(self, nbytes: int, what: str = "") -> Tensor:
        """Device memory, contents undefined; OutOfMemoryError names `what` and the numbers."""

    def host_alloc(self, nbytes: int, *, mapped: bool = False, what: str = "") -> Tensor:
        """Host memory that transfers run from at full speed, zeroed; `mapped`: kernels can address it,
        too."""

    def mapped(self, tensor: Tensor) -> Tensor:
        """The same bytes of mapped host memory at the address that kernels use."""

    def free(self, tensor: Tensor) -> None:
        """Give back what `alloc` or `host_alloc` returned (the tensor itself or any view of it)."""

    def upload(self, dst: Tensor, array: np.ndarray) -> None:
        """Copy a host array of as many bytes into dense `dst`, in compute-stream order. The array may be
        reused on return. Safe from several threads, except while a graph is being captured."""

    def download(self, src: Tensor) -> np.ndarray:
        """A host copy, [*src.shape] of src.dtype.numpy, once the compute stream has come to it."""

    def copy(self, dst: Tensor, src: Tensor, *, stream: int | None = None) -> None:
        """Copy dense memory between any two places, asynchronously when host memory is pinned."""

    def zero(self, tensor: Tensor, *, stream: int | None = None) -> None: ...

    def fill_random(self, tensor: Tensor, seed: int, *, kind: str = "") -> None:
        """Harmless pseudo-random contents, the same on every device: kind "f32", "bf16", "bytes" or "scales"
        (small positive f16); by default the one that FILLS names for the type, or bytes."""

    def synchronize(self, stream: int | None = None) -> None:
        """Wait for one stream, or without one for everything."""

    def event(self, *, timing: bool = False) -> Event: ...

    def capture(self) -> AbstractContextManager[Graph]:
        """`with device.capture() as graph:` records what the calling thread launches on the compute stream;
        after the block `graph.replay()` runs it. Only where `supports_graphs`."""

    def use(self) -> None:
        """Make the device current in the calling thread. The verbs here do it themselves; a thread that
        launches kernels directly calls it once."""

    def close(self) -> None: ...
