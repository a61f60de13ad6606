"""The house rules: who imports whom, sizes, names, and that documentation says what is so."""

import ast
import re
import tomllib
from pathlib import Path

import pytest
import rules
from rules import ROOT

from xinfer import cli, env
from xinfer.config import EngineConfig
from xinfer.sampling import SamplingParams

CODE = ("xinfer", "kernels", "server", "scripts", "tests")
MARKDOWN = [name for name in rules.files() if name.endswith(".md")]
CONFIGURATION = ROOT / "docs" / "configuration.md"


def ok(wrong: list[str]) -> None:
    """Fail with every violation at once."""
    assert not wrong, "\n" + "\n".join(wrong)


# -- imports


def test_who_imports_whom() -> None:
    wrong = []
    for dotted, name in rules.modules().items():
        if rules.unit(dotted) not in rules.MAY_IMPORT:
            wrong.append(f"{name}: tests/shape/rules.py does not say what {rules.unit(dotted)} may import")
            continue
        for found in rules.imports(name):
            if found.name.split(".")[0] == "xinfer" and not rules.allowed(dotted, found.name):
                wrong.append(f"{name}:{found.line}: {rules.unit(dotted)} may not import {found.name}")
            if found.name.split(".")[0] in ("kernels", "server"):
                wrong.append(f"{name}:{found.line}: {found.name} is imported as xinfer.{found.name}")
    ok(wrong)


def test_the_rules_bite() -> None:
    """What the other tests stand on: names, in-function imports, and refusals."""
    assert rules.modules()["xinfer.kernels.contract"] == "kernels/contract.py"
    lazy = {(found.name, found.lazy) for found in rules.imports("xinfer/__init__.py")}
    assert ("xinfer.engine", True) in lazy and ("pathlib", False) in lazy
    assert "xinfer.load.raw" in {found.name for found in rules.imports("xinfer/load/gguf.py")}
    assert rules.allowed("xinfer.sched.scheduler", "xinfer.kv.pages")
    assert not rules.allowed("xinfer.sched.scheduler", "xinfer.kv.pool")
    assert not rules.allowed("xinfer.kernels.contract", "xinfer.errors")
    assert not rules.allowed("xinfer.models.llama", "xinfer.tensor")
    assert "tests/unit/test_cli.py" in rules.files() and "README" not in rules.VAGUE_FILES


def test_fences() -> None:
    wrong = []
    for name in rules.python_files("xinfer", "kernels", "server", "scripts"):
        for found in rules.imports(name):
            top = found.name.split(".")[0]
            places = rules.FENCES.get(top, ("",))
            places += rules.LAZY_FENCES.get(top, ()) if found.lazy else ()
            if not name.startswith(places):
                wrong.append(f"{name}:{found.line}: {top} is imported only in {', '.join(places)}")
    ok(wrong)


def test_no_import_cycles() -> None:
    edges = {
        dotted: sorted({found.name for found in rules.imports(name)} & rules.modules().keys() - {dotted})
        for dotted, name in rules.modules().items()
    }
    done: set[str] = set()

    def visit(dotted: str, path: tuple[str, ...]) -> None:
        assert dotted not in path, " -> ".join((*path[path.index(dotted) :], dotted))
        if dotted not in done:
            for target in edges[dotted]:
                visit(target, (*path, dotted))
            done.add(dotted)

    for dotted in edges:
        visit(dotted, ())


def test_one_reader_of_the_environment() -> None:
    wrong = []
    for name in rules.python_files("xinfer", "kernels", "server", "scripts"):
        for node in ast.walk(rules.tree(name)):
            word = getattr(node, "attr", None) if isinstance(node, ast.Attribute) else None
            if word in ("environ", "environb", "getenv") and name != "xinfer/env.py":
                wrong.append(f"{name}:{node.lineno}: only xinfer/env.py reads the environment")
    ok(wrong)


# -- sizes and names


def test_sizes() -> None:
    """Lines of files and functions; ruff counts the columns."""
    wrong = []
    for name in rules.python_files(*CODE):
        lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
        if len(lines) > rules.MAX_FILE:
            wrong.append(f"{name}: {len(lines)} lines, at most {rules.MAX_FILE}")
        for function, line, count, inner in rules.functions(name):
            limit = rules.MAX_KERNEL if inner and name.startswith("kernels/cuda/") else rules.MAX_FUNCTION
            if count > limit:
                wrong.append(f"{name}:{line}: {function} has {count} lines, at most {limit}")
    ok(wrong)


def test_a_model_is_a_short_file() -> None:
    wrong = []
    for name in rules.python_files("xinfer"):
        defines = any(
            function == "spec" or function.endswith("_spec") for function, *_ in rules.functions(name)
        )
        if name.startswith("xinfer/models/") and defines:
            count = len((ROOT / name).read_text().splitlines())
            if count > rules.MAX_MODEL:
                wrong.append(f"{name}: {count} lines, at most {rules.MAX_MODEL}")
    ok(wrong)


def test_names_say_something() -> None:
    wrong = []
    for name in rules.python_files(*CODE):
        vague = {part.removesuffix(".py") for part in name.split("/")} & rules.VAGUE_FILES
        if vague and name not in rules.VAGUE_FILES_ALLOWED:
            wrong.append(f"{name}: {', '.join(vague)} says nothing about what is in it")
        for node in ast.walk(rules.tree(name)):
            if isinstance(node, ast.ClassDef) and re.search(rules.VAGUE_CLASS, node.name):
                wrong.append(f"{name}:{node.lineno}: class {node.name} says nothing about what it is")
    ok(wrong)


def test_a_format_is_known_to_one_file() -> None:
    """The name of a quantised format stands in its own file: N formats and M kernels are N + M pieces."""
    quantised = {
        Path(name).stem for name in rules.python_files("xinfer") if re.match(r"xinfer/formats/i?q\d", name)
    }
    assert quantised, "no quantised format found"
    wrong = []
    for name in rules.python_files("xinfer", "kernels", "server"):
        for node in ast.walk(rules.tree(name)):
            word = node.value if isinstance(node, ast.Constant) else None
            if isinstance(word, str) and word.lower() in quantised - {Path(name).stem}:
                wrong.append(f"{name}:{node.lineno}: {word!r} belongs into xinfer/formats/{word.lower()}.py")
    ok(wrong)


def test_nothing_that_a_reader_cannot_know() -> None:
    wrong = []
    for name in rules.text_files():
        text = (ROOT / name).read_text(encoding="utf-8", errors="replace")
        for pattern in rules.UNKNOWABLE:
            for found in re.finditer(pattern, text, re.IGNORECASE):
                wrong.append(f"{name}:{text.count(chr(10), 0, found.start()) + 1}: {found[0]!r}")
    ok(wrong)


# -- packaging and documentation


def test_packages_are_the_folders() -> None:
    """Every folder with code in it is installed, and under the name it is imported by."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    listed = project["tool"]["setuptools"]["packages"]
    placed = project["tool"]["setuptools"]["package-dir"]
    holding = {
        name.rpartition("/")[0]
        for name in rules.python_files("xinfer", "kernels", "server")
        if (ROOT / name).stat().st_size
    }
    names = {folder: module for module, folder in placed.items()}
    assert sorted(listed) == sorted(names.get(folder, folder.replace("/", ".")) for folder in holding)
    for package in listed:
        assert (ROOT / placed.get(package, package.replace(".", "/")) / "__init__.py").is_file(), package


@pytest.mark.parametrize("name", MARKDOWN)
def test_links_resolve(name: str) -> None:
    wrong = []
    text = re.sub(r"```.*?```", "", (ROOT / name).read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        path, _, anchor = target.partition("#")
        if re.match(r"[a-z]+:", target):
            continue
        there = (ROOT / name).parent / path if path else ROOT / name
        if not there.exists():
            wrong.append(f"{name}: no {path}")
        elif anchor and there.suffix == ".md" and anchor not in _anchors(there):
            wrong.append(f"{name}: {there.name} has no heading #{anchor}")
    ok(wrong)


def _anchors(path: Path) -> set[str]:
    """Headings as GitHub writes them into links."""
    headings = re.findall(r"^#+ +(.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def _table(heading: str) -> dict[str, list[str]]:
    """Rows of the first table below a heading of docs/configuration.md: first column, bare -> the others."""
    text = CONFIGURATION.read_text(encoding="utf-8").partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("|")]
    return {row[0].strip("` "): [cell.strip() for cell in row[1:]] for row in rows[2:]}


def test_documented_environment() -> None:
    documented = _table("Environment")
    expected = {v.name: [f"`{v.default}`" if v.default else "none", v.meaning] for v in env.TABLE}
    assert documented == expected


@pytest.mark.parametrize("heading, kind", [("Engine", EngineConfig), ("Sampling", SamplingParams)])
def test_documented_options(heading: str, kind: type) -> None:
    """Each field with its flag and its default, and nothing else."""
    flags = _flags()
    documented = {name: cells[:2] for name, cells in _table(heading).items()}
    expected = {}
    for name, field in kind.__dataclass_fields__.items():
        default = "required" if name == "m" else _default(field)
        expected[name] = [", ".join(f"`{flag}`" for flag in flags.get(name, ())) or "none", default]
    assert documented == expected


def test_documented_command() -> None:
    """Flags that belong to no field of EngineConfig or SamplingParams."""
    fields = {*EngineConfig.__dataclass_fields__, *SamplingParams.__dataclass_fields__}
    assert set(_table("Command line")) == {
        "`, `".join(flags) for name, flags in _flags().items() if name not in fields
    }


def _flags() -> dict[str, list[str]]:
    return {action.dest: action.option_strings for action in cli.make_parser()._actions}


def _default(field) -> str:
    value = field.default
    if value in ((), None) or callable(field.default_factory):
        return "none"
    return f"`{value}`"
