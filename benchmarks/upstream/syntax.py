# SPDX-License-Identifier: Apache-2.0
"""Read literals and the fields of configuration classes from syntax trees, without importing them."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

SIMPLE: dict[str, tuple[type, ...]] = {
    **{"int": (int,), "float": (int, float), "bool": (bool,), "str": (str,), "dict": (dict,), "list": (list,)},
    "None": (type(None),),
}
Names = Mapping[str, set[Any]]


@dataclass(frozen=True)
class Field:
    """A field of a configuration class.

    Attributes:
        type: the annotation, and `default` the default, as source text; "" without one.
        values: the values of its Literal types.
        kinds: names of further accepted types, of those in SIMPLE; None accepts every value.
    """

    name: str
    type: str = ""
    default: str = ""
    values: frozenset[Any] = frozenset()
    kinds: frozenset[str] | None = None

    def problem(self, value: Any) -> str:
        """Return why the field does not accept a value, or ""."""
        if self.kinds is None or any(_is_kind(value, kind) for kind in self.kinds):
            return ""
        if isinstance(value, str | int | bool | None) and value in self.values:
            return ""
        expected = f"of the type {self.type}" if self.kinds else f"one of {sorted(map(str, self.values))}"
        return f"{value!r} is not {expected}"


def _is_kind(value: Any, kind: str) -> bool:
    return isinstance(value, SIMPLE[kind]) and (kind == "bool" or not isinstance(value, bool))


def literals(trees: Iterable[ast.Module]) -> dict[str, set[Any]]:
    """Return the values of each `Name = Literal[...]`; nested names are resolved."""
    found: dict[str, set[Any]] = {}
    for tree in trees:
        for node in tree.body:
            target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
            if isinstance(target, ast.Name) and isinstance(value := getattr(node, "value", None), ast.Subscript):
                values: set[Any] = set()
                for inner in ast.walk(value.slice):
                    values |= {inner.value} if isinstance(inner, ast.Constant) else set()
                    values |= found.get(inner.id, set()) if isinstance(inner, ast.Name) else set()
                found[target.id] = values
    return found


def find_class(trees: Iterable[ast.Module], name: str) -> ast.ClassDef | None:
    """Return the definition of a class at the top of a module, or None."""
    nodes = (node for tree in trees for node in tree.body if isinstance(node, ast.ClassDef))
    return next((node for node in nodes if node.name == name), None)


def class_fields(trees: list[ast.Module], name: str, names: Names | None = None) -> dict[str, Field]:
    """Return the annotated fields of a class and of its bases in the same modules; `names` are named literals."""
    known = literals(trees) if names is None else names
    node = find_class(trees, name)
    if node is None:
        return {}
    found: dict[str, Field] = {}
    for base in reversed(node.bases):
        base_name = ast.unparse(base).split("[")[0].split(".")[-1]
        found |= class_fields(trees, base_name, known) if base_name != name else {}
    for each in node.body:
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name) and not _is_class_variable(each):
            found[each.target.id] = _field(each.target.id, each.annotation, each.value, known)
    return found


def parameters(node: ast.FunctionDef, names: Names) -> dict[str, Field]:
    """Return the parameters of a method except self, as fields."""
    positional = [*node.args.posonlyargs, *node.args.args][1:]
    defaults = [*[None] * (len(positional) - len(node.args.defaults)), *node.args.defaults]
    pairs = [*zip(positional, defaults, strict=True), *zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)]
    return {each.arg: _field(each.arg, each.annotation, default, names) for each, default in pairs}


def options(tree: ast.AST) -> dict[str, Field]:
    """Return the options that a module adds to argparse parsers, by name without dashes, with their choices."""
    found: dict[str, Field] = {}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not ast.unparse(node.func).endswith(".add_argument"):
            continue
        given = {each.arg: each.value for each in node.keywords}
        choices = given.get("choices")
        values = strings(choices) if choices is not None else set()
        for name in (each.value for each in node.args if isinstance(each, ast.Constant)):
            plain = str(name).lstrip("-")
            kinds = frozenset[str]() if values else None
            found[plain] = Field(plain, _text(given.get("type")), _text(given.get("default")), frozenset(values), kinds)
    return found


def strings(node: ast.AST) -> set[str]:
    """Return all string constants below a node."""
    return {each.value for each in ast.walk(node) if isinstance(each, ast.Constant) and isinstance(each.value, str)}


def _is_class_variable(node: ast.AnnAssign) -> bool:
    return ast.unparse(node.annotation).split("[")[0] in ("ClassVar", "typing.ClassVar")


def _field(name: str, annotation: ast.expr | None, default: ast.expr | None, names: Names) -> Field:
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        annotation = ast.parse(annotation.value, mode="eval").body
    annotation = _unwrapped(annotation)
    accepted = _accepted(annotation, names)
    values, kinds = accepted if accepted else (set(), None)
    frozen = None if kinds is None else frozenset(kinds)
    return Field(name, _text(annotation), _text(default), frozenset(values), frozen)


def _unwrapped(node: ast.expr | None) -> ast.expr | None:
    """Return the type in `A[type, help]` and Annotated[type, ...]."""
    if isinstance(node, ast.Subscript) and ast.unparse(node.value) in ("A", "Annotated", "typing.Annotated"):
        return node.slice.elts[0] if isinstance(node.slice, ast.Tuple) else node.slice
    return node


def _accepted(node: ast.expr | None, names: Names) -> tuple[set[Any], set[str]] | None:
    """Return the literal values and the simple types that an annotation accepts, None if that is unknown."""
    if isinstance(node, ast.Constant) and node.value is None:
        return set(), {"None"}
    if isinstance(node, ast.Name):
        named = (set(names[node.id]), set[str]()) if node.id in names else None
        return (set(), {node.id}) if node.id in SIMPLE else named
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return _union([node.left, node.right], names)
    return _accepted_generic(node, names) if isinstance(node, ast.Subscript) else None


def _accepted_generic(node: ast.Subscript, names: Names) -> tuple[set[Any], set[str]] | None:
    generic = ast.unparse(node.value).split(".")[-1]
    parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    if generic == "Literal":
        return {each.value for each in parts if isinstance(each, ast.Constant)}, set()
    if generic in ("dict", "list", "Dict", "List"):
        return set(), {generic.lower()}
    if generic in ("Optional", "Union"):
        return _union([*parts, *([ast.Constant(None)] if generic == "Optional" else [])], names)
    return None


def _union(nodes: list[ast.expr], names: Names) -> tuple[set[Any], set[str]] | None:
    parts = [_accepted(node, names) for node in nodes]
    if None in parts:
        return None
    known = [part for part in parts if part]
    return {value for values, _ in known for value in values}, {kind for _, kinds in known for kind in kinds}


def _text(node: ast.AST | None) -> str:
    return "" if node is None else ast.unparse(node)
