"""The house rules as data, and how the tree is read to hold them."""

import ast
import functools
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent

# Who may import whom: the first part of a module's name below xinfer -> what it may import besides itself.
# An entry with a dot allows that module only. In-function imports count.
RUNNING = ("run", "sched", "kv", "plan", "config", "env", "sampling", "spec", "device", "tensor", "errors")
MAY_IMPORT: dict[str, tuple[str, ...]] = {
    "__init__": ("engine", "sampling"),
    "__main__": ("cli",),
    "cli": ("__init__", "engine", "config", "env", "sampling", "errors"),
    "server": ("__init__", "engine", "reply", "sampling", "text", "errors"),
    "engine": (*RUNNING, "start", "reply", "text"),
    "start": (*RUNNING, "load", "models", "text"),
    "reply": ("sched", "text"),
    "run": (
        *("decoder", "layers.activations", "ops", "kv", "batch", "tensor", "device", "formats.weight"),
        *("parallel", "plan", "sched", "sampling", "spec"),
    ),
    "decoder": ("layers", "ops", "kv", "experts", "parallel", "spec", "batch", "tensor"),
    "layers": ("ops", "kv", "experts", "parallel", "spec", "batch", "tensor", "device.arena"),
    "experts": ("ops", "device", "tensor", "formats", "spec", "errors"),
    "parallel": ("ops", "formats", "tensor"),
    "ops": ("kernels", "device", "tensor", "formats", "spec", "errors", "ops_cuda"),
    "ops_cuda": ("kernels", "device", "tensor", "formats", "spec", "errors"),
    "batch": ("tensor",),
    "kv": ("device", "tensor", "spec"),
    "load": ("formats", "models", "spec", "device", "tensor", "errors"),
    "models": ("spec", "errors"),
    "formats": ("tensor", "kernels"),
    "device": ("tensor", "kernels", "env", "errors"),
    "plan": ("spec", "config", "kv", "tensor", "errors"),
    "sched": ("kv.pages", "sampling", "errors"),
    "text": ("errors",),
    "env": ("config", "errors"),
    "config": ("errors",),
    "sampling": ("errors",),
    "spec": ("errors",),
    "tensor": (),
    "errors": (),
    "kernels": (),
}
PUBLIC = {
    "Engine": "engine",
    "SamplingParams": "sampling",
    "__version__": "__init__",
}  # names of xinfer itself

# Top-level names of other people's packages -> the files (or folders) that may import them.
FENCES: dict[str, tuple[str, ...]] = {
    "numba": ("kernels/cpu/", "kernels/cuda/"),
    "llvmlite": ("kernels/cuda/",),
    "cuda": ("kernels/cuda/", "xinfer/device/cuda.py"),
    "mpi4py": ("xinfer/parallel.py",),
    "nccl": ("xinfer/parallel.py",),
    "flask": ("server/",),
    "torch": ("scripts/make_goldens.py", "scripts/ceilings.py"),  # ceilings: a yardstick, where it is there
    "transformers": ("scripts/make_goldens.py",),
}
LAZY_FENCES = {"numba": ("xinfer/formats/",)}  # there inside functions only: importing a format stays light

MAX_FILE, MAX_FUNCTION, MAX_MODEL = 400, 60, 80
MAX_KERNEL = 90  # accumulators that stay in registers from the first line to the last cannot be cut in two

VAGUE_FILES = {"util", "utils", "helper", "helpers", "common", "misc", "base", "mixin", "mixins", "manager"}
VAGUE_FILES_ALLOWED = {"xinfer/device/base.py"}  # the verbs that all devices share
VAGUE_CLASS = r"^_?(Base|Abstract)|(Base|Manager|Helper|Helpers|Util|Utils|Mixin)$"

# What a reader of the repository cannot look up. Phrases, so that pytest scopes, HTTP sessions and user
# agents stay sayable.
UNKNOWABLE = (
    r"\b(this|previous|earlier|next|last|another|other|parallel|future|my|our|worker|lead) sessions?\b",
    r"\b(sub-?|coding |AI |another |other |this |lead |worker )agents?\b",
    r"\b(issue|issues|ticket) #?\d+\b",
    r"\bPLAN\.md\b",
    r"\b(my|the|this|your) brief\b",
    r"\.\./shared\b",
    r"(?<![\w.~])/(work|root|home/\w+)/",
    r"/tmp/bash_jobs",
)
TEXT = {".py", ".md", ".toml", ".sh", ".js", ".css", ".html", ".yml", ".cfg", ""}


@dataclass(frozen=True, slots=True)
class Import:
    """One import of a file: the absolute dotted name, its line, and whether it stands inside a function."""

    name: str
    line: int
    lazy: bool


@functools.cache
def files() -> tuple[str, ...]:
    """Files of the repository, by path: what git knows or would add, else all that is not hidden."""
    git = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    try:
        done = subprocess.run(git, cwd=ROOT, capture_output=True, text=True, check=True)
        names = done.stdout.splitlines()
    except (OSError, subprocess.CalledProcessError):
        found = (path.relative_to(ROOT) for path in ROOT.rglob("*") if path.is_file())
        names = [
            path.as_posix() for path in found if not any(part.startswith(".") for part in path.parts[:-1])
        ]
    return tuple(sorted({name for name in names if (ROOT / name).is_file() and "__pycache__" not in name}))


def python_files(*folders: str) -> list[str]:
    return [name for name in files() if name.endswith(".py") and name.split("/")[0] in folders]


def text_files() -> list[str]:
    return [name for name in files() if Path(name).suffix in TEXT and not name.startswith("tests/shape/")]


@functools.cache
def tree(name: str) -> ast.Module:
    return ast.parse((ROOT / name).read_text(encoding="utf-8"), name)


def module(name: str) -> str:
    """kernels/cuda/ptx.py -> xinfer.kernels.cuda.ptx; a package goes by its folder's name."""
    parts = name.removesuffix(".py").split("/")
    parts = parts if parts[0] == "xinfer" else ["xinfer", *parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 2 else parts)


@functools.cache
def modules() -> dict[str, str]:
    """Dotted name -> file, of everything that is imported as xinfer."""
    return {module(name): name for name in python_files("xinfer", "kernels", "server")}


def imports(name: str) -> Iterator[Import]:
    """Every import of a file, relative ones made absolute."""
    package = module(name).split(".")
    if not name.endswith("__init__.py"):
        package = package[:-1]
    yield from _imports(tree(name), package, lazy=False)


def _imports(node: ast.AST, package: list[str], lazy: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            for alias in child.names:
                yield Import(alias.name, child.lineno, lazy)
        elif isinstance(child, ast.ImportFrom):
            start = package[: len(package) - child.level + 1] if child.level else []
            source = ".".join([*start, *filter(None, [child.module])])
            for alias in child.names:
                yield Import(_target(source, alias.name), child.lineno, lazy)
        else:
            yield from _imports(child, package, lazy or _is_function(child))


def _target(source: str, name: str) -> str:
    """What `from source import name` imports: a module where there is one, else the name's module."""
    if f"{source}.{name}" in modules():
        return f"{source}.{name}"
    if source == "xinfer":
        return f"xinfer.{PUBLIC.get(name, name)}"
    return source


def unit(dotted: str) -> str:
    """The key of MAY_IMPORT: xinfer.kernels.cuda.ptx -> kernels."""
    return dotted.split(".")[1] if "." in dotted else "__init__"


def allowed(source: str, target: str) -> bool:
    """Whether the module `source` may import the module `target`, both dotted names below xinfer."""
    if unit(source) == unit(target):
        return True
    below = target.removeprefix("xinfer.") if "." in target else "__init__"
    return any(below == entry or below.startswith(entry + ".") for entry in MAY_IMPORT.get(unit(source), ()))


def functions(name: str) -> Iterator[tuple[str, int, int, bool]]:
    """(name, first line, lines, whether it stands inside another) of each function; lines of a function
    inside another count for itself only."""
    inside = {inner for node in ast.walk(tree(name)) if _is_function(node) for inner in _inner(node)}
    for node in ast.walk(tree(name)):
        if _is_function(node):
            yield node.name, node.lineno, _length(node) - sum(map(_length, _inner(node))), node in inside


def _is_function(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)


def _length(node: ast.AST) -> int:
    return node.end_lineno - node.lineno + 1


def _inner(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if _is_function(child):
            yield child
        else:
            yield from _inner(child)
