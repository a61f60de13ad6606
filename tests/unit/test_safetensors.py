"""The safetensors reader against the library's writer, and against damage."""

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file
from tiny_files import raw_safetensors, write_safetensors

from xinfer.errors import CheckpointError, UnsupportedError, XinferError
from xinfer.load.safetensors import INDEX, SafetensorsFile, read_folder

ARRAYS = {
    "a": np.arange(6, dtype=np.float32).reshape(2, 3),
    "b": np.arange(4).astype(ml_dtypes.bfloat16),
    "empty": np.zeros((0, 5), np.float16),
}


def test_the_library_s_files(tmp_path):
    save_file(ARRAYS, tmp_path / "x.safetensors", metadata={"format": "pt"})
    file = SafetensorsFile(tmp_path / "x.safetensors")
    assert file.metadata == {"format": "pt"}
    assert {name: (raw.dtype, raw.shape) for name, raw in file.tensors.items()} == {
        "a": ("F32", (2, 3)),
        "b": ("BF16", (4,)),
        "empty": ("F16", (0, 5)),
    }
    for name, raw in file.tensors.items():
        assert raw.ggml_type is None and raw.data.tobytes() == ARRAYS[name].tobytes()
        assert not raw.data.flags.writeable


def entry(dtype="F32", shape=(2,), offsets=(0, 8)) -> dict:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


@pytest.mark.parametrize(
    "header, message",
    [
        ([], "JSON list"),
        ({"t": 3}, "lacks dtype"),
        ({"t": {"dtype": "F32"}}, "lacks dtype"),
        ({"t": entry(shape=(-2,))}, "has shape"),
        ({"t": entry(offsets=(0, 8, 9))}, "data_offsets"),
        ({"t": entry(offsets=(8, 0))}, "ends at byte 0"),
        ({"t": entry(shape=(4,), offsets=(0, 16))}, "ends at byte 16 of 8"),
        ({"t": entry(shape=(3,))}, "has 8 bytes, not 12"),
        ({"t": entry(shape=(1 << 40, 1 << 40))}, "has 8 bytes, not"),
        ({"t": entry(), "u": entry(shape=(1,), offsets=(4, 8))}, "'t' and 'u' share bytes"),
    ],
)
def test_refused_headers(tmp_path, header, message):
    path = raw_safetensors(tmp_path / "x.safetensors", header, bytes(8))
    with pytest.raises(CheckpointError, match=message):
        SafetensorsFile(path)


def test_unknown_type(tmp_path):
    path = raw_safetensors(tmp_path / "x.safetensors", {"t": entry("F3")}, bytes(8))
    with pytest.raises(UnsupportedError, match="'t' is of type 'F3'"):
        SafetensorsFile(path)


def test_four_bit_elements(tmp_path):
    path = raw_safetensors(tmp_path / "x.safetensors", {"t": entry("F4", (2, 8))}, bytes(8))
    assert len(SafetensorsFile(path).tensors["t"].data) == 8


def test_refused_files(tmp_path):
    path = tmp_path / "x.safetensors"
    with pytest.raises(CheckpointError, match="no file"):
        SafetensorsFile(path)
    for data, message in (
        (b"", "empty"),
        (b"abc", "too few"),
        (b"\xff" * 16, "its header takes"),
        (b"\4" + bytes(7) + b"{]{]", "not JSON"),
        (b"\2" + bytes(7) + b"\xff\xff", "not JSON"),
    ):
        path.write_bytes(data)
        with pytest.raises(CheckpointError, match=message):
            SafetensorsFile(path)


def test_deep_json_is_refused(tmp_path):
    text = b"[" * 200_000
    path = tmp_path / "x.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text)
    with pytest.raises(CheckpointError, match="not JSON"):
        SafetensorsFile(path)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damage_is_always_an_xinfer_error(tmp_path, data):
    path = write_safetensors(tmp_path / "x.safetensors", ARRAYS)
    mutant = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(mutant) - 1))
        mutant[at : at + 1] = data.draw(st.binary(min_size=0, max_size=4))
    path.write_bytes(mutant[: data.draw(st.integers(0, len(mutant)))] if data.draw(st.booleans()) else mutant)
    try:
        tensors = SafetensorsFile(path).tensors
    except XinferError as error:
        assert "\n" not in str(error)
    else:
        for raw in tensors.values():
            assert raw.matrix().nbytes == len(raw.data)


def sharded(folder: Path) -> dict[str, str]:
    where = {"a": "m-1.safetensors", "b": "m-2.safetensors"}
    for name, file in where.items():
        write_safetensors(folder / file, {name: ARRAYS[name]})
    (folder / INDEX).write_text(json.dumps({"weight_map": where}))
    return where


def test_folders(tmp_path):
    with pytest.raises(CheckpointError, match=r"no \*\.safetensors"):
        read_folder(tmp_path)
    sharded(tmp_path)
    assert list(read_folder(tmp_path)) == ["a", "b"]
    (tmp_path / INDEX).unlink()
    assert sorted(read_folder(tmp_path)) == ["a", "b"]
    write_safetensors(tmp_path / "m-3.safetensors", {"a": ARRAYS["a"]})
    with pytest.raises(CheckpointError, match="repeats 1 tensors"):
        read_folder(tmp_path)


def test_index_errors(tmp_path):
    where = sharded(tmp_path)
    (tmp_path / "m-2.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"lacks 1 of 2 shards: fetch m-2\.safetensors"):
        read_folder(tmp_path)
    write_safetensors(tmp_path / "m-2.safetensors", {"c": ARRAYS["a"]})
    with pytest.raises(CheckpointError, match="lacks 'b'"):
        read_folder(tmp_path)
    for index in ("{", "[]", "{}", '{"weight_map": {"a": 3}}', json.dumps({"weight_map": {"a": "../x"}})):
        (tmp_path / INDEX).write_text(index)
        with pytest.raises(CheckpointError):
            read_folder(tmp_path)
    assert where
