"""The environment variables xinfer reads: one table, one reader. No other file looks at os.environ."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from xinfer.config import did_you_mean
from xinfer.errors import ConfigError

PREFIX = "XINFER_"
TEST_PREFIX = "XINFER_TEST_"  # where the test suite finds its data; no part of the product


@dataclass(frozen=True, slots=True)
class Kind:
    """A type of value: what is accepted, in words, and a parser that raises ValueError on anything else."""

    accepts: str
    parse: Callable[[str], object]


@dataclass(frozen=True, slots=True)
class Variable:
    """One row of the table. `field` is its name in Env; `default` is written as a user would write it."""

    name: str
    field: str
    kind: Kind
    default: str
    meaning: str


@dataclass(frozen=True, slots=True)
class Env:
    """The parsed environment."""

    cache: Path
    prebuilt: Path | None
    debug: bool


def _switch(text: str) -> bool:
    words = {
        "1": True,
        "true": True,
        "yes": True,
        "on": True,
        "0": False,
        "false": False,
        "no": False,
        "off": False,
    }
    if text.lower() not in words:
        raise ValueError
    return words[text.lower()]


def _folder(text: str) -> Path:
    path = Path(text).expanduser()
    if not path.is_absolute() or path.is_file():
        raise ValueError
    return path


SWITCH = Kind("1, true, yes, on, 0, false, no or off", _switch)


def _existing_folder(text: str) -> Path | None:
    if not text:
        return None
    path = Path(text).expanduser()
    if not path.is_absolute() or not path.is_dir():
        raise ValueError
    return path


FOLDER = Kind("an absolute path of a folder (it is created when missing)", _folder)
EXISTING_FOLDER = Kind("an absolute path of a folder that exists", _existing_folder)

TABLE = (
    Variable(
        "XINFER_CACHE",
        "cache",
        FOLDER,
        "~/.cache/xinfer",
        "where built kernels and the models of scripts/fetch_models.py are kept",
    ),
    Variable(
        "XINFER_PREBUILT",
        "prebuilt",
        EXISTING_FOLDER,
        "",
        "a folder of kernels built elsewhere from the same sources; it is looked at first and only read",
    ),
    Variable("XINFER_DEBUG", "debug", SWITCH, "0", "show the traceback of an error instead of its one line"),
)


def load(environ: Mapping[str, str] | None = None) -> Env:
    """Read the table from `environ` (the process's own by default). An empty value counts as unset; a value
    that does not parse and a XINFER_ name that is not in the table are ConfigErrors: a typo must not pass in
    silence."""
    environ = os.environ if environ is None else environ
    known = [variable.name for variable in TABLE]
    for name in sorted(environ):
        if name.startswith(PREFIX) and not name.startswith(TEST_PREFIX) and name not in known:
            hint = did_you_mean(name.removeprefix(PREFIX), [word.removeprefix(PREFIX) for word in known])
            hint = hint.replace(" '", f" '{PREFIX}") or f"; this version reads {', '.join(known)}"
            raise ConfigError(f"unknown environment variable {name}{hint} (unset it to go on)")
    return Env(**{variable.field: _read(variable, environ) for variable in TABLE})


def _read(variable: Variable, environ: Mapping[str, str]) -> object:
    text = environ.get(variable.name, "") or variable.default
    try:
        return variable.kind.parse(text)
    except ValueError:
        raise ConfigError(
            f"{variable.name}={text!r} is not understood: give {variable.kind.accepts}"
        ) from None


def describe() -> str:
    """The table as text, for --help and the documentation."""
    width = max(len(variable.name) for variable in TABLE)
    return "\n".join(f"{v.name:<{width}}  {v.meaning} (default {v.default or 'none'})" for v in TABLE)
