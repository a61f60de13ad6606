"""Weight formats against the gguf package's dequantisation, bit for bit, and packing against decode()."""

import gguf
import ml_dtypes
import numpy as np
import pytest

from xinfer.formats import FORMATS, by_ggml_type, by_safetensors
from xinfer.formats.format import bf16_bits, bf16_values

SCALE_BYTES = {"q4_0": (0,), "q4_1": (0, 2), "q5_0": (0,), "q8_0": (0,), "q4_k": (0, 2), "q6_k": (208,)}


def random_raw(name: str, n: int, k: int, seed: int = 0) -> np.ndarray:
    """u8 rows of any codes, with scales that are ordinary numbers."""
    rng, format = np.random.default_rng(seed), FORMATS[name]
    if name not in SCALE_BYTES:
        return format.encode(
            rng.standard_normal((n, k), np.float32) * 10 ** rng.uniform(-4, 4, (n, k)).astype("f4")
        )
    raw = rng.integers(0, 256, (n, k // format.block, format.block_bytes), np.uint8)
    for at in SCALE_BYTES[name]:
        values = (rng.standard_normal((n, k // format.block, 1)) * 0.02).astype(np.float16)
        raw[..., at : at + 2] = values.view(np.uint8)
    return raw.reshape(n, -1)


@pytest.mark.parametrize("name", FORMATS)
def test_decode_is_ggml(name):
    raw = random_raw(name, 7, 768)
    kind = gguf.GGMLQuantizationType(FORMATS[name].ggml_type)
    stored = raw.view({"f16": np.float16, "f32": np.float32}.get(name, np.uint8))
    wanted = gguf.quants.dequantize(stored, kind)
    got = FORMATS[name].decode(raw)
    assert got.dtype == np.float32 and got.shape == (7, 768)
    assert np.array_equal(got.view(np.uint32), np.ascontiguousarray(wanted).view(np.uint32))
    assert gguf.GGML_QUANT_SIZES[kind] == (FORMATS[name].block, FORMATS[name].block_bytes)


@pytest.mark.parametrize("name", [f.name for f in FORMATS.values() if f.encode])
def test_encode_is_ggml(name):
    """Where the gguf package quantises, too: the same bytes."""
    values = np.random.default_rng(3).standard_normal((5, 256), np.float32)
    kind = gguf.GGMLQuantizationType(FORMATS[name].ggml_type)
    wanted = np.ascontiguousarray(gguf.quants.quantize(values, kind)).view(np.uint8)
    assert np.array_equal(FORMATS[name].encode(values), wanted)


@pytest.mark.parametrize("n, k", [(1, 256), (17, 512), (40, 768), (64, 1024)])
@pytest.mark.parametrize("name", FORMATS)
def test_packing_keeps_every_weight(name, n, k):
    """What a kernel sees is decode(), or its bf16 where the device stores bf16; padding decodes to 0."""
    format = FORMATS[name]
    raw = random_raw(name, n, k, seed=n)
    planes = format.pack(raw)
    assert [plane.nbytes for plane in planes] == [plane.nbytes for plane in format.planes(n, k)]
    wanted = format.decode(raw)
    if format.kernel_name == "bf16":
        wanted = bf16_values(bf16_bits(wanted))
    assert np.array_equal(format.unpack(planes, n, k), wanted)
    padded = format.unpack(planes, -(-n // 16) * 16, k)
    assert not padded[n:].any()


@pytest.mark.parametrize("name", ["bf16", "q4_0", "q4_1", "q5_0", "q8_0"])
@pytest.mark.parametrize("k", [32, 96, 320])
def test_packing_pads_k(name, k):
    format = FORMATS[name]
    raw = random_raw(name, 5, k)
    planes = format.pack(raw)
    whole = format.unpack(planes, 5, -(-k // 64) * 64)
    assert np.array_equal(whole[:, :k], format.unpack(planes, 5, k))
    assert not whole[:, k:].any()


def test_fragment_order():
    """The layout of format.py's docstring, computed weight by weight."""
    values = np.arange(32 * 128, dtype=np.uint16).reshape(32, 128)
    plane = FORMATS["bf16"].pack(values.view(np.uint8))[0].view(np.uint16).reshape(-1, 4, 32, 8)
    for n in range(32):
        for k in range(128):
            g, t = n % 8, k % 8 // 2
            j = (n % 16 // 8) + 2 * (k % 16 // 8)
            tile, step = n // 16 * 2 + k // 64, k % 64 // 16
            assert plane[tile, step, g * 4 + t, j * 2 + k % 2] == values[n, k]


def test_bf16_rounds_like_ml_dtypes():
    values = np.random.default_rng(1).integers(0, 1 << 32, 100_000, np.uint32).view(np.float32)
    values = values[np.isfinite(values)]
    with np.errstate(over="ignore"):
        wanted = values.astype(ml_dtypes.bfloat16).view(np.uint16)
    assert np.array_equal(bf16_bits(values), wanted)


def test_lookup():
    assert by_ggml_type(12).name == "q4_k"
    assert by_safetensors("F16").name == "f16"
    assert by_ggml_type(10) is None and by_safetensors("I32") is None
