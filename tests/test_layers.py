# SPDX-License-Identifier: Apache-2.0
"""Imports point one way, and no backend is named outside its folder."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import trtspec

PACKAGE = Path(trtspec.__file__).parent

# Each package may import those before it.
ORDER = (
    *(
        "core",
        "recipe",
        "store",
        "fleet",
        "kernels",
        "checkpoints",
        "families",
        "methods",
        "engine",
        "serving",
        "backends",
    ),
    *("planning", "bench", "deployment", "training", "report", "cli", "__main__"),
)
# Folders that are scanned for extensions. Packages before them use extensions through the registry alone.
EXTENSIONS = ("fleet/pools", "families", "methods", "backends", "deployment/targets", "deployment/build_jobs/kinds")
BACKENDS = sorted(
    path.parent.name for path in (PACKAGE / "backends").glob("*/__init__.py") if "BACKEND = " in path.read_text()
)
# The one place that has the models' names, one of which a backend has too.
NAMES = PACKAGE / "serving" / "triton" / "names.py"
# Other projects' commands, some of which start a server that a backend is called after.
TRAINERS = PACKAGE / "training" / "external" / "trainers"


@cache
def modules() -> list[Path]:
    return sorted(path for path in PACKAGE.rglob("*.py") if "_data" not in path.parts)


def package_of(path: Path) -> str:
    first = path.relative_to(PACKAGE).parts[0]
    return first.removesuffix(".py")


def files_of(package: str) -> list[Path]:
    return [path for path in modules() if package_of(path) == package]


EACH_PACKAGE = pytest.mark.parametrize("package", sorted({package_of(path) for path in modules()}))


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """Return a module's syntax tree in pieces, itself first."""
    return tuple(ast.walk(ast.parse(path.read_text())))


@cache
def imports(path: Path) -> set[str]:
    """Return the dotted names that a module imports from trtspec, wherever in it."""
    found = set()
    for node in nodes(path):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name for name in found if name.startswith("trtspec.")}


def imported_packages(path: Path) -> set[str]:
    return {second for name in imports(path) if (second := name.split(".")[1]) in ORDER}


def backend_of(path: Path) -> str | None:
    """Return the backend of a module: that of its folder, or the one whose terms for a method it has."""
    first, *rest = path.relative_to(PACKAGE).parts
    name = {"backends": rest[0], "methods": path.stem}.get(first, "") if rest else ""
    return name if name in BACKENDS else None


def is_method_part(path: Path) -> bool:
    """Return whether a module of a method loads separately; it may import packages that come after methods."""
    first, *rest = path.relative_to(PACKAGE).parts
    return first == "methods" and len(rest) > 1 and path.name != "__init__.py"


def test_package_has_only_the_listed_entries_and_at_most_seventeen() -> None:
    found = {package_of(path) for path in modules()} - {"__init__", "__main__"}
    assert found == {*ORDER} - {"__main__"}
    assert len(found) <= 17


@pytest.mark.slow
@EACH_PACKAGE
def test_imports_follow_the_layer_order(package: str) -> None:
    found = [
        (path, other)
        for path in files_of(package)
        for other in imported_packages(path) - {package}
        if package in ORDER and not is_method_part(path)
    ]
    assert [f"{path}: {other}" for path, other in found if ORDER.index(other) > ORDER.index(package)] == []


def extension_modules() -> set[str]:
    """Return the dotted names of all extensions, each a module or folder with the requested attribute."""
    found = set()
    for folder in EXTENSIONS:
        for path in [*(PACKAGE / folder).glob("*.py"), *(PACKAGE / folder).glob("*/__init__.py")]:
            if re.search(r"^(POOL|FAMILY|METHOD|BACKEND|TARGET|KIND)\b.* = ", path.read_text(), re.MULTILINE):
                dotted = path.parent if path.name == "__init__.py" else path.with_suffix("")
                found.add(".".join(("trtspec", *dotted.relative_to(PACKAGE).parts)))
    return found


@pytest.mark.slow
def test_extension_is_imported_only_by_extensions() -> None:
    known, found = extension_modules(), []
    assert len(known) > 25
    for path in modules():
        is_core = package_of(path) not in EXTENSIONS and not {"targets", "pools"} & {*path.parts}
        if is_core:
            found += [
                f"{path}: {name}"
                for name in imports(path)
                if any(name == each or name.startswith(f"{each}.") for each in known)
            ]
    assert found == []


@pytest.mark.slow
@EACH_PACKAGE
def test_backend_is_imported_only_within_its_folder(package: str) -> None:
    found = [(path, name.split(".")) for path in files_of(package) for name in imports(path)]
    of_backends = [(path, parts[2]) for path, parts in found if parts[1] == "backends" and len(parts) > 2]
    assert [f"{path}: {other}" for path, other in of_backends if other in BACKENDS and other != backend_of(path)] == []


CITATION = re.compile(r"[\w.-]+/[\w.-]+:[\w./-]+@[\w.]+")  # a public file: owner/repository:path@version


def words(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the strings of a module without its docstrings and without sources that it cites."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = {
        id(node.body[0].value)
        for node in nodes(path)
        if isinstance(node, documented) and node.body and isinstance(node.body[0], ast.Expr)
    }
    for node in nodes(path):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.lineno, CITATION.sub("", node.value)


@EACH_PACKAGE
def test_backend_is_named_only_within_its_folder(package: str) -> None:
    found = []
    for path in [path for path in files_of(package) if path != NAMES and path.parent != TRAINERS]:
        own = backend_of(path)
        others = "|".join(name for name in BACKENDS if name != own and not (own and name == "tensorrt_llm"))
        found += [f"{path}:{line}: {text!r}" for line, text in words(path) if re.search(rf"\b({others})\b", text)]
    assert found == []


def cycles(graph: dict[str, set[str]]) -> list[str]:
    """Return the modules that import themselves through others."""
    reached: dict[str, set[str]] = {}

    def reach(name: str, seen: set[str]) -> None:
        for other in graph.get(name, ()):
            if other not in seen:
                seen.add(other)
                reach(other, seen)

    for name in graph:
        reach(name, reached.setdefault(name, set()))
    return [name for name, seen in reached.items() if name in seen]


def modules_of(path: Path, known: set[str]) -> set[str]:
    """Return what a module imports, when it is imported itself or later."""
    found = set()
    for node in nodes(path):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            submodules = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= submodules & known or {node.module}
    return found


def test_modules_have_no_import_cycles() -> None:
    dotted = {".".join(("trtspec", *path.relative_to(PACKAGE).with_suffix("").parts)): path for path in modules()}
    dotted = {name.removesuffix(".__init__"): path for name, path in dotted.items()}
    assert cycles({name: modules_of(path, {*dotted}) & dotted.keys() - {name} for name, path in dotted.items()}) == []


def test_layer_checks_detect_violations(tmp_path: Path) -> None:
    module = tmp_path / "m.py"
    module.write_text('"""About vllm."""\nfrom trtspec.cli.app import main\nNAME = "use vllm"\n')
    assert imported_packages(module) == {"cli"}
    assert [text for _, text in words(module)] == ["use vllm"]
    assert cycles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == ["b", "c"]
