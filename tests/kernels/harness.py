"""What tests of GPU kernels share: a GPU with arrays going up and coming down, and weights of every format.

A test module has pytestmark = harness.NEEDS_GPU and gpu = pytest.fixture(scope="module")(harness.opened).
"""

import ml_dtypes
import numpy as np
import pytest

from xinfer import device as devices
from xinfer.formats import FORMATS
from xinfer.formats.weight import Weight
from xinfer.tensor import DType, Tensor, host_tensor

NEEDS_GPU = pytest.mark.skipif(not devices.cuda_available(), reason="no CUDA GPU here")
SCALE_BYTES = {"q4_0": (0,), "q4_1": (0, 2), "q5_0": (0,), "q8_0": (0,), "q4_k": (0, 2), "q6_k": (208,)}


class Gpu:
    """A device whose tensors are numpy arrays on the way in and out."""

    def __init__(self, device) -> None:
        self.device, self.library, self.stream = device, device.library, device.stream
        self.taken: list[Tensor] = []

    def empty(self, shape: tuple[int, ...], dtype: DType = DType.F32) -> Tensor:
        tensor = self.device.alloc(max(1, int(np.prod(shape))) * dtype.itemsize)
        self.taken.append(tensor)
        return tensor.rows(0, int(np.prod(shape)) * dtype.itemsize).view(shape, dtype)

    def put(self, array: np.ndarray, dtype: DType | None = None) -> Tensor:
        """A copy on the GPU; its type is the array's, or bf16 bits as `dtype` says."""
        array = np.ascontiguousarray(array)
        tensor = self.empty(array.shape, dtype or host_tensor(array).dtype)
        self.device.upload(tensor, array)
        return tensor

    def get(self, tensor: Tensor) -> np.ndarray:
        return self.device.download(tensor)

    def weight(self, name: str, raw: np.ndarray, k: int) -> Weight:
        """Rows of a format's file bytes, packed."""
        planes = tuple(self.put(plane) for plane in FORMATS[name].pack(raw))
        return Weight(FORMATS[name], raw.shape[0], k, planes)

    def dense(self, values: np.ndarray) -> Weight:
        """f32 [N,K] as it is kept in f32 mode."""
        return Weight(FORMATS["f32"], *values.shape, (), self.put(values))

    def clear(self) -> None:
        """Free all that was put or made here."""
        self.device.synchronize()
        for tensor in self.taken:
            self.device.free(tensor)
        self.taken.clear()


def opened():
    with devices.open_device("cuda") as device:
        yield Gpu(device)


def bf16(values: np.ndarray) -> np.ndarray:
    """f32 -> bits of the nearest bf16, u16."""
    return values.astype(ml_dtypes.bfloat16).view(np.uint16)


def f32(bits: np.ndarray) -> np.ndarray:
    """bf16 bits u16 -> f32."""
    return bits.view(ml_dtypes.bfloat16).astype(np.float32)


def random_raw(name: str, n: int, k: int, seed: int = 0) -> np.ndarray:
    """u8 [N, row bytes]: any codes with scales of ordinary size, or values about N(0, 1)."""
    rng, format = np.random.default_rng(seed), FORMATS[name]
    if name not in SCALE_BYTES:
        return format.encode(rng.standard_normal((n, k), np.float32))
    raw = rng.integers(0, 256, (n, k // format.block, format.block_bytes), np.uint8)
    for at in SCALE_BYTES[name]:
        scales = (rng.standard_normal((n, k // format.block, 1)) * 0.05).astype(np.float16)
        raw[..., at : at + 2] = scales.view(np.uint8)
    return raw.reshape(n, -1)
