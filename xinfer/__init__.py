"""xinfer: an LLM inference engine in plain Python. `from xinfer import Engine, SamplingParams`."""

from pathlib import Path as _Path

__version__ = "0.1.0"
__all__ = ["Engine", "SamplingParams", "__version__"]

# In a bare checkout kernels/ and server/ lie beside this package; an installed copy has them inside it.
_root = _Path(__file__).resolve().parent.parent
if (_root / "pyproject.toml").is_file() and (_root / "kernels").is_dir():
    __path__.append(str(_root))


def __getattr__(name: str) -> object:
    if name == "Engine":
        from xinfer.engine import Engine

        return Engine
    if name == "SamplingParams":
        from xinfer.sampling import SamplingParams

        return SamplingParams
    raise AttributeError(f"module 'xinfer' has no attribute {name!r}")
