# SPDX-License-Identifier: Apache-2.0
"""Read literals and the fields of configuration classes from syntax trees, without importing them."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

SIMPLE: dict[str, tuple[type, ...]] = {
    **{"int": (int,), "float": (int, float), "bool": (bool,), "str": (str,), "dict": (dict,), "list": (list,)},
    "None": (type(None),),
}
# Types of pydantic with a bound: the simple type, and the bound.
BOUNDED: dict[str, tuple[str, tuple[str, float]]] = {
    **{"PositiveInt": ("int", ("gt", 0)), "NonNegativeInt": ("int", ("ge", 0))},
    **{"PositiveFloat": ("float", ("gt", 0)), "NonNegativeFloat": ("float", ("ge", 0))},
}
BOUNDS: dict[str, Callable[[Any, Any], bool]] = {
    **{"gt": operator.gt, "ge": operator.ge, "lt": operator.lt, "le": operator.le},
}
Names = Mapping[str, set[Any]]


@dataclass(frozen=True)
class Field:
    """A field of a configuration class.

    Attributes:
        type: the annotation, and `default` the default, as source text; "" without one.
        values: the values of its Literal types.
        kinds: names of further accepted types, of those in SIMPLE, with the type of their items as in list[int]; None
            accepts every value.
        bounds: limits of numbers, by the names in BOUNDS.
    """

    name: str
    type: str = ""
    default: str = ""
    values: frozenset[Any] = frozenset()
    kinds: frozenset[str] | None = None
    bounds: frozenset[tuple[str, float]] = frozenset()

    def problem(self, value: Any) -> str:
        """Return why the field does not accept a value, or ""."""
        if self.kinds is None:
            return ""
        if any(_is_kind(value, kind) for kind in self.kinds):
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            broken = [each for each in sorted(self.bounds) if is_number and not BOUNDS[each[0]](value, each[1])]
            return f"{value!r} is not {' '.join(map(str, broken[0]))}" if broken else ""
        if isinstance(value, str | int | bool | None) and value in self.values:
            return ""
        expected = f"of the type {self.type}" if self.kinds else f"one of {sorted(map(str, self.values))}"
        return f"{value!r} is not {expected}"


def _is_kind(value: Any, kind: str) -> bool:
    outer, _, inner = kind.partition("[")
    if not isinstance(value, SIMPLE[outer]) or (outer != "bool" and isinstance(value, bool)):
        return False
    items = [*value, *value.values()] if isinstance(value, dict) else value
    return not inner or all(_is_kind(each, inner.removesuffix("]")) for each in items)


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


def parse_field(name: str, annotation: str) -> Field:
    """Return the field with an annotation in Python's syntax, without a default."""
    return _field(name, ast.parse(annotation, mode="eval").body, None, {})


@dataclass(frozen=True)
class Accepted:
    """The values that an annotation accepts, in the terms of Field."""

    values: set[Any] = field(default_factory=set)
    kinds: set[str] = field(default_factory=set)
    bounds: set[tuple[str, float]] = field(default_factory=set)


def _field(name: str, annotation: ast.expr | None, default: ast.expr | None, names: Names) -> Field:
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        annotation = ast.parse(annotation.value, mode="eval").body
    accepted = _accepted(_without_help(annotation), names)
    if accepted is None:
        return Field(name, _text(_without_help(annotation)), _text(default))
    limits = accepted.bounds | _limits(default)
    kinds = (frozenset(accepted.values), frozenset(accepted.kinds), frozenset(limits))
    return Field(name, _text(_without_help(annotation)), _text(default), *kinds)


def _without_help(node: ast.expr | None) -> ast.expr | None:
    """Return the type in vLLM's and SGLang's `A[type, help]`."""
    if isinstance(node, ast.Subscript) and ast.unparse(node.value) == "A":
        return node.slice.elts[0] if isinstance(node.slice, ast.Tuple) else node.slice
    return node


def _limits(node: ast.expr | None) -> set[tuple[str, float]]:
    """Return the bounds in the arguments of a call: Field(default, ge=0), Ge(ge=0)."""
    given = node.keywords if isinstance(node, ast.Call) else []
    pairs = ((each.arg, each.value) for each in given if each.arg in BOUNDS)
    return {(str(name), value.value) for name, value in pairs if isinstance(value, ast.Constant)}


def _accepted(node: ast.expr | None, names: Names) -> Accepted | None:
    """Return what an annotation accepts, None if that is unknown."""
    if isinstance(node, ast.Constant) and node.value is None:
        return Accepted(kinds={"None"})
    if isinstance(node, ast.Name):
        if node.id in BOUNDED:
            kind, bound = BOUNDED[node.id]
            return Accepted(kinds={kind}, bounds={bound})
        named = Accepted(values=set(names[node.id])) if node.id in names else None
        return Accepted(kinds={node.id}) if node.id in SIMPLE else named
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return _union([node.left, node.right], names)
    return _accepted_generic(node, names) if isinstance(node, ast.Subscript) else None


def _accepted_generic(node: ast.Subscript, names: Names) -> Accepted | None:
    generic = ast.unparse(node.value).split(".")[-1]
    parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    if generic == "Literal":
        return Accepted(values={each.value for each in parts if isinstance(each, ast.Constant)})
    if generic in ("dict", "list", "Dict", "List"):
        return Accepted(kinds={generic.lower() + _items(parts, names)})
    if generic in ("Optional", "Union"):
        return _union([*parts, *([ast.Constant(None)] if generic == "Optional" else [])], names)
    if generic == "Annotated" and (accepted := _accepted(parts[0], names)):
        return Accepted(accepted.values, accepted.kinds, accepted.bounds.union(*map(_limits, parts[1:])))
    return None


def _items(parts: list[ast.expr], names: Names) -> str:
    """Return "[KIND]" if all parts of a generic type are of one simple type, otherwise ""."""
    kinds = [each.kinds if each and not each.bounds | each.values else set() for each in _all(parts, names)]
    return f"[{min(kinds[0])}]" if len(kinds[0]) == 1 and all(each == kinds[0] for each in kinds) else ""


def _union(nodes: list[ast.expr], names: Names) -> Accepted | None:
    found = Accepted()
    for part in _all(nodes, names):
        if part is None:
            return None
        found = Accepted(found.values | part.values, found.kinds | part.kinds, found.bounds | part.bounds)
    return found


def _all(nodes: list[ast.expr], names: Names) -> list[Accepted | None]:
    return [_accepted(node, names) for node in nodes]


def _text(node: ast.AST | None) -> str:
    return "" if node is None else ast.unparse(node)
