"""Device decoders on a GPU, bit for bit against NumPy: every format's packed weights as its kernels see
them."""

import numpy as np
import pytest

from xinfer.device import cuda_available, open_device
from xinfer.formats import FORMATS
from xinfer.formats.format import bf16_bits
from xinfer.formats.weight import Weight
from xinfer.tensor import DType

pytestmark = pytest.mark.skipif(not cuda_available(), reason="no GPU here")
SCALES = {"q4_0": (0,), "q4_1": (0, 2), "q5_0": (0,), "q8_0": (0,), "q4_k": (0, 2), "q6_k": (208,)}


@pytest.fixture(scope="module")
def device():
    with open_device("cuda") as opened:
        yield opened


def random_raw(name: str, n: int, k: int) -> np.ndarray:
    rng, format = np.random.default_rng(5), FORMATS[name]
    if name not in SCALES:
        return format.encode(rng.standard_normal((n, k), np.float32))
    raw = rng.integers(0, 256, (n, k // format.block, format.block_bytes), np.uint8)
    for at in SCALES[name]:
        raw[..., at : at + 2] = (
            rng.standard_normal((n, k // format.block, 1)).astype(np.float16).view(np.uint8)
        )
    return raw.reshape(n, -1)


@pytest.mark.parametrize("name", FORMATS)
def test_device_decoder(device, name):
    from xinfer.kernels.cuda.unpack import Unpack

    format, n, k = FORMATS[name], 53, 1280
    raw = random_raw(name, n, k)
    planes = []
    for array in format.pack(raw):
        planes.append(device.alloc(array.nbytes))
        device.upload(planes[-1], array)
    out = device.alloc(64 * k * 2).view((64, k), DType.BF16)
    Unpack(device.library)(device.stream, out, Weight(format, n, k, tuple(planes)))
    got = device.download(out)[:n]
    wanted = bf16_bits(format.decode(raw))
    same = (got == wanted) | ((got & 0x7FFF == 0) & (wanted & 0x7FFF == 0))  # the sign of zero may differ
    assert same.all(), f"{(~same).sum()} of {same.size} differ"
