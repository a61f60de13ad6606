"""Every kernel builds for every target it serves, without a GPU: no spills, no stack, within its register
budget.

Cubins are kept in pytest's cache folder, so that only changed kernels are built again. XINFER_TEST_SM=90,120
limits the targets."""

import importlib
import importlib.util
import os
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from xinfer.kernels.cuda import build as toolchain
from xinfer.kernels.cuda import fill, sources
from xinfer.kernels.cuda.build import TARGETS, CubinCache, KernelSpec, key

ROOT = Path(__file__).resolve().parents[2]
CHOSEN = [int(sm) for sm in os.environ.get("XINFER_TEST_SM", "").split(",") if sm] or TARGETS
SPEC = fill.spec("bytes")


@pytest.fixture(scope="session")
def report():
    """scripts/kernels_report.py as a module."""
    where = importlib.util.spec_from_file_location("kernels_report", ROOT / "scripts" / "kernels_report.py")
    module = importlib.util.module_from_spec(where)
    where.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def folder(request) -> Path:
    return Path(request.config.cache.mkdir("cubins"))


@pytest.mark.parametrize("sm", CHOSEN)
def test_every_kernel_builds_within_its_budget(sm, report, folder):
    specs = [spec for spec in report.catalog(report.decoders()) if spec.serves(sm)]
    cubins = toolchain.build(specs, sm, folder)
    bad = {spec.name: wrong for spec in specs if (wrong := report.faults(spec, cubins[spec.name]))}
    assert set(cubins) == {spec.name for spec in specs} and not bad


def test_faults_are_told(report):
    cubin = toolchain.Cubin(
        b"", "entry", "i64", registers=50, spill_bytes=8, stack_bytes=16, shared_bytes=0, seconds=0
    )
    assert report.faults(replace(SPEC, max_registers=40), cubin) == [
        "spills 8 bytes",
        "uses 16 bytes of stack",
        "uses 50 registers, budget 40",
    ]
    assert not report.faults(SPEC, replace(cubin, registers=40, spill_bytes=0, stack_bytes=0))


def test_report_saves_a_prebuilt_folder(report, folder, tmp_path, capsys):
    """The saved cubins are found under the key that a Library asks a prebuilt folder for."""
    arguments = ["--sm", "90", "--only", "fill_bytes", "--save", str(tmp_path), "--folder", str(folder)]
    assert report.main(arguments) == 0
    out = capsys.readouterr().out
    assert "fill_bytes" in out and "sm_90: 1 kernels" in out and " 0 faulty" in out
    assert CubinCache(tmp_path).load(key(fill.spec("bytes"), 90, versions="")) is not None


def test_report_fails_over_budget(report, folder, monkeypatch, capsys):
    monkeypatch.setattr(report, "catalog", lambda decoders: [replace(SPEC, max_registers=2)])
    assert report.main(["--sm", "90", "--folder", str(folder)]) == 1
    assert "registers, budget 2" in capsys.readouterr().out


# The cache


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A kernel module whose source a test may rewrite: write(text) -> KernelSpec."""
    monkeypatch.syspath_prepend(str(tmp_path))
    name = "kernel_under_test"

    def write(text: str) -> KernelSpec:
        (tmp_path / f"{name}.py").write_text(text)
        forget_sources()
        importlib.invalidate_caches()
        importlib.import_module(name)
        return KernelSpec("under_test", f"{name}:make")

    yield write
    sys.modules.pop(name, None)
    forget_sources()


def forget_sources() -> None:
    for cached in (sources.digest, sources._file, sources._imports):
        cached.cache_clear()


def test_key_follows_the_source(module):
    first = key(module("def make():\n    return None, 'i64'\n"), 90)
    assert key(module("def make():\n    return None, 'i64'\n"), 90) == first
    assert key(module("def make():\n    return None, 'i32'\n"), 90) != first


def test_key_follows_what_the_source_imports(tmp_path, monkeypatch):
    package = tmp_path / "package_under_test"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "kernel.py").write_text("from . import part\nfrom .other import thing\n")
    (package / "part.py").write_text("value = 1\n")
    (package / "other.py").write_text("thing = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    spec = KernelSpec("k", "package_under_test.kernel:make")
    keys = []
    for file in (None, "part.py", "other.py", "__init__.py"):
        if file:
            with open(package / file, "a") as source:
                source.write("# changed\n")
        forget_sources()
        keys.append(key(spec, 90))
    for name in [n for n in sys.modules if n.startswith("package_under_test")]:
        del sys.modules[name]
    forget_sources()
    assert len(set(keys)) == 4


def test_key_follows_parameters_target_and_versions():
    others = [
        key(SPEC, 80),
        key(SPEC, 90, versions="numba=0"),
        key(fill.spec("f32"), 90),
        key(replace(SPEC, block=(128, 1, 1)), 90),
        key(replace(SPEC, params=(("kind", "bf16"),)), 90),
        key(replace(SPEC, min_blocks=2), 90),
    ]
    assert len({key(SPEC, 90), *others}) == 7 and key(SPEC, 90) == key(replace(SPEC), 90)


def test_keys_are_the_same_in_another_process(report):
    """Whatever was imported before: here everything, there what a key itself asks for, in reverse."""
    specs = report.catalog(report.decoders())
    code = (
        "import pickle, sys\n"
        "specs = pickle.load(sys.stdin.buffer)\n"
        "from xinfer.kernels.cuda.build import key\n"
        "print(*reversed([key(spec, 90, versions='') for spec in reversed(specs)]))"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, input=pickle.dumps(specs), capture_output=True, check=True)
    assert done.stdout.decode().split() == [key(spec, 90, versions="") for spec in specs]


RUINS = {
    "empty": lambda blob: b"",
    "cut in the head": lambda blob: blob[:30],
    "cut in the image": lambda blob: blob[:-100],
    "no json": lambda blob: b"not json" + blob[8:],
    "other json": lambda blob: b"{}" + blob[blob.index(b"\n") :],
}


@pytest.mark.parametrize("ruin", RUINS.values(), ids=RUINS)
def test_a_corrupt_file_is_built_again(ruin, tmp_path):
    whole = toolchain.build([SPEC], 90, tmp_path)[SPEC.name]
    path = tmp_path / f"{key(SPEC, 90)}.cubin"
    path.write_bytes(ruin(path.read_bytes()))
    assert CubinCache(tmp_path).load(key(SPEC, 90)) is None
    again = toolchain.build([SPEC], 90, tmp_path)[SPEC.name]
    assert again.registers == whole.registers and CubinCache(tmp_path).load(key(SPEC, 90)) == again


def test_a_cached_kernel_is_not_built_again(tmp_path):
    told = []
    for _ in range(2):
        toolchain.build([SPEC], 90, tmp_path, progress=lambda *what: told.append(what))
    assert told == [(1, 1, SPEC.name)]


def test_two_processes_fill_one_folder(tmp_path):
    code = (
        "import sys; from pathlib import Path\n"
        "from xinfer.kernels.cuda import fill, build\n"
        "specs = [fill.spec('bytes'), fill.spec('f32')]\n"
        "built = build.build(specs, 90, Path(sys.argv[1]))\n"
        "assert sorted(built) == ['fill_bytes', 'fill_f32']\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    both = [subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE) for _ in range(2)]
    for process in both:
        _, errors = process.communicate()
        assert process.returncode == 0, errors.decode()
    wanted = {f"{key(fill.spec(kind), 90)}.cubin" for kind in ("bytes", "f32")}
    assert {path.name for path in tmp_path.iterdir()} == wanted
    assert all(CubinCache(tmp_path).load(name.removesuffix(".cubin")) for name in wanted)


def test_serves():
    assert [t for t in TARGETS if KernelSpec("k", "m:f", min_sm=89).serves(t)] == [89, 90, 100, 120]
    assert [t for t in TARGETS if KernelSpec("k", "m:f", only_sm=(90,)).serves(t)] == [90]
