"""What a kernel's machine code depends on: the source text of its module and of all project modules behind
it.

Imports are read from the syntax tree, so that lazy ones count and nothing is executed to find them.
"""

import ast
import functools
import hashlib
import importlib.util
from pathlib import Path


@functools.cache
def digest(module: str) -> bytes:
    """SHA-256 over the names and sources of `module` and everything of its own top package it imports."""
    root = module.split(".")[0]
    seen: dict[str, Path] = {}
    todo = [module]
    while todo:
        name = todo.pop()
        if name in seen or name.split(".")[0] != root:
            continue
        path = _file(name)
        if path is not None:
            seen[name] = path
            todo += _imports(name, path)
    total = hashlib.sha256()
    for name in sorted(seen):
        total.update(name.encode() + b"\0" + seen[name].read_bytes() + b"\0")
    return total.digest()


@functools.cache
def _file(name: str) -> Path | None:
    """The source file of a module; None for names inside modules and for packages without one."""
    try:
        found = importlib.util.find_spec(name)
    except (ModuleNotFoundError, ValueError):
        return None
    return Path(found.origin) if found and found.origin and found.origin.endswith(".py") else None


@functools.cache
def _imports(name: str, path: Path) -> tuple[str, ...]:
    """Absolute names that the file may import; a name from a module may be a module itself."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    found = []
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = package.split(".")
                base = ".".join(parts[: len(parts) - node.level + 1] + ([base] if base else []))
            found += [base] + [f"{base}.{alias.name}" for alias in node.names]
    return tuple(found)
