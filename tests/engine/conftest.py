"""Engines for tests: small, on the CPU unless XINFER_TEST_DEVICE names another device."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from xinfer import Engine
from xinfer.device import cuda_available

TINY = Path(__file__).resolve().parent.parent / "goldens" / "tiny"


@pytest.fixture(scope="session")
def device() -> str:
    kind = os.environ.get("XINFER_TEST_DEVICE", "cpu")
    if kind == "cuda" and not cuda_available():
        pytest.skip("no GPU here")
    return kind


@pytest.fixture
def engine(device: str) -> Iterator[Callable[..., Engine]]:
    """A function that makes engines, which are closed after the test."""
    made: list[Engine] = []

    def make(m: Path | str, **options: object) -> Engine:
        options.setdefault("device", device)
        made.append(Engine(m, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture(scope="session")
def tiny() -> Path:
    """Folder of tiny checkpoints of our own making, with logits of another implementation."""
    return TINY
