"""The GGUF reader against files of the `gguf` package's writer, and against damage."""

import struct
import time
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiny_files import llama_tensors, write_gguf

from xinfer.errors import CheckpointError, UnsupportedError, XinferError
from xinfer.load.gguf import GgufFile


def small(path: Path, **keys: object) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_token_list(["a", "ü", "€"])
    writer.add_array("test.floats", [0.5, -1.0])
    writer.add_array("test.flags", [True, False])
    writer.add_bool("test.flag", True)
    writer.add_int8("test.small", -3)
    writer.add_uint64("test.large", 1 << 63)
    writer.add_float64("test.double", 0.1)
    for key, value in keys.items():
        writer.add_uint32(key, value)
    writer.add_tensor("f32", np.arange(6, dtype=np.float32).reshape(2, 3))
    rows = np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)
    q8 = gguf.GGMLQuantizationType.Q8_0
    writer.add_tensor("q8", gguf.quants.quantize(rows, q8), raw_dtype=q8)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def good(tmp_path_factory) -> bytes:
    return small(tmp_path_factory.mktemp("gguf") / "small.gguf").read_bytes()


def test_values_and_tensors(tmp_path):
    file = GgufFile(small(tmp_path / "a.gguf"))
    assert file.metadata["general.architecture"] == "llama"
    assert file.metadata["tokenizer.ggml.tokens"] == ["a", "ü", "€"]
    assert file.metadata["test.floats"] == [0.5, -1.0]
    assert file.metadata["test.flags"] == [True, False]
    assert file.metadata["test.flag"] is True
    assert file.metadata["test.small"] == -3
    assert file.metadata["test.large"] == 1 << 63
    assert file.metadata["test.double"] == 0.1
    f32, q8 = file.tensors["f32"], file.tensors["q8"]
    assert (f32.dtype, f32.ggml_type, f32.shape) == ("F32", 0, (2, 3))
    assert f32.data.view("<f4").tolist() == [0, 1, 2, 3, 4, 5]
    assert (q8.dtype, q8.ggml_type, q8.shape) == ("Q8_0", 8, (4, 64))
    assert q8.matrix().shape == (4, 68)


@pytest.mark.parametrize("alignment", [32, 256])
def test_the_same_as_the_other_reader(tmp_path, alignment):
    tensors = llama_tensors()
    path = write_gguf(tmp_path / "m.gguf", tensors, {"proj": "Q4_0"}, alignment=alignment)
    own, other = GgufFile(path), gguf.GGUFReader(path)
    assert [t.name for t in other.tensors] == list(own.tensors)
    for theirs in other.tensors:
        ours = own.tensors[theirs.name]
        assert ours.shape == tuple(int(n) for n in reversed(theirs.shape))
        assert ours.ggml_type == theirs.tensor_type
        assert ours.data.tobytes() == theirs.data.tobytes()
    for key, field in other.fields.items():
        if not key.startswith("GGUF."):
            assert own.metadata[key] == field.contents()


def test_large_vocabulary_is_fast(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "v.gguf", "llama")
    tokens = [f"token{i}" for i in range(262144)]
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * len(tokens))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    start = time.process_time()
    file = GgufFile(tmp_path / "v.gguf")
    assert time.process_time() - start < 1
    assert file.metadata["tokenizer.ggml.tokens"] == tokens


def test_missing_file(tmp_path):
    with pytest.raises(CheckpointError, match=r"no file .*x\.gguf"):
        GgufFile(tmp_path / "x.gguf")


def damaged(tmp_path: Path, data: bytes) -> GgufFile:
    path = tmp_path / "bad.gguf"
    path.write_bytes(data)
    return GgufFile(path)


def test_wrong_magic_and_version(tmp_path, good):
    with pytest.raises(CheckpointError, match="not a GGUF file"):
        damaged(tmp_path, b"PK" + good[2:])
    with pytest.raises(UnsupportedError, match="version 1;"):
        damaged(tmp_path, good[:4] + struct.pack("<I", 1) + good[8:])
    with pytest.raises(UnsupportedError, match="big-endian"):
        damaged(tmp_path, good[:4] + struct.pack(">I", 3) + good[8:])
    with pytest.raises(CheckpointError, match="empty"):
        damaged(tmp_path, b"")


def test_version_2_reads_alike(tmp_path, good):
    file = damaged(tmp_path, good[:4] + struct.pack("<I", 2) + good[8:])
    assert list(file.tensors) == ["f32", "q8"]


def test_unknown_type_names_tensor_and_type(tmp_path, good):
    at = good.index(b"q8") + 2 + 4 + 16
    with pytest.raises(UnsupportedError, match=r"'q8' is of unknown type 99"):
        damaged(tmp_path, good[:at] + struct.pack("<I", 99) + good[at + 4 :])


def test_tensor_past_the_end(tmp_path, good):
    with pytest.raises(CheckpointError, match=r"tensor 'q8' ends at byte .* the file has"):
        damaged(tmp_path, good[:-200])


def test_bad_alignment_and_offset(tmp_path, good):
    path = small(tmp_path / "a.gguf", **{"general.alignmenX": 24})
    data = path.read_bytes().replace(b"general.alignmenX", b"general.alignment")
    with pytest.raises(CheckpointError, match="not a power of two"):
        damaged(tmp_path, data)
    at = good.index(b"q8") + 2 + 4 + 16 + 4
    with pytest.raises(CheckpointError, match="not a multiple of 32"):
        damaged(tmp_path, good[:at] + struct.pack("<Q", 33) + good[at + 8 :])


def split_files(folder: Path, parts: int = 2) -> list[Path]:
    paths = []
    for i in range(parts):
        path = folder / f"m-{i + 1:05}-of-{parts:05}.gguf"
        writer = gguf.GGUFWriter(path, "llama")
        writer.add_uint16("split.no", i)
        writer.add_uint16("split.count", parts)
        writer.add_int32("split.tensors.count", parts)
        if i == 0:
            writer.add_token_list(["a"])
        writer.add_tensor(f"t{i}", np.full((1, 4), i, np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        paths.append(path)
    return paths


@pytest.mark.parametrize("opened", [0, 1])
def test_split(tmp_path, opened):
    file = GgufFile(split_files(tmp_path)[opened])
    assert file.metadata["tokenizer.ggml.tokens"] == ["a"]
    assert {name: raw.data.view("<f4")[0] for name, raw in file.tensors.items()} == {"t0": 0, "t1": 1}


def test_split_errors(tmp_path):
    first, second = split_files(tmp_path)
    renamed = first.rename(tmp_path / "other.gguf")
    with pytest.raises(CheckpointError, match="one of 2 parts but is not called"):
        GgufFile(renamed)
    with pytest.raises(CheckpointError, match=r"lacks 1 of 2 parts, first m-00001-of-00002\.gguf"):
        GgufFile(second)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damage_is_always_an_xinfer_error(tmp_path, good, data):
    mutant = bytearray(good)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(good) - 1))
        mutant[at : at + 1] = data.draw(st.binary(min_size=0, max_size=8))
    mutant = bytes(mutant[: data.draw(st.integers(0, len(mutant)))] if data.draw(st.booleans()) else mutant)
    try:
        file = damaged(tmp_path, mutant)
    except XinferError as error:
        assert "\n" not in str(error)
    else:
        for raw in file.tensors.values():
            assert raw.matrix().nbytes == len(raw.data)


def test_real_files(models):
    for path in models.glob("*.gguf"):
        file = GgufFile(path)
        assert file.metadata["tokenizer.ggml.tokens"] and "token_embd.weight" in file.tensors
