"""Where tests find what they are checked against: shared goldens, when they lie beside the checkout."""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def shared_folder() -> Path | None:
    """The folder of goldens made by other implementations, or None."""
    place = Path(os.environ.get("XINFER_TEST_SHARED", ROOT.parent / "shared"))
    return place if (place / "goldens").is_dir() else None


@pytest.fixture(scope="session")
def shared() -> Path:
    place = shared_folder()
    if place is None:
        pytest.skip("the shared goldens are not beside this checkout (set XINFER_TEST_SHARED)")
    return place


@pytest.fixture(scope="session")
def models() -> Path:
    """The folder of real models; scripts/demo and scripts/test fetch them."""
    place = Path(os.environ.get("XINFER_TEST_MODELS", Path.home() / ".cache" / "xinfer" / "models"))
    if not place.is_dir():
        pytest.skip(f"no real models in {place} (scripts/fetch_models.py puts them there)")
    return place
