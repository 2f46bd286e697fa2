# SPDX-License-Identifier: Apache-2.0
"""Validation of a recipe tree: a Recipe, or diagnostics with source locations and hints.

The rules are in the schema. This module translates pydantic's errors into messages and adds default hints.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError

from trtspec.core.diagnostics import (
    MAX_DIAGNOSTICS,
    Diagnostic,
    Mark,
    quote_value,
    simplify_pydantic_message,
    sort_position,
)
from trtspec.core.registry import did_you_mean
from trtspec.recipe.schema import FORMAT, IDENTIFIER, PATTERN_DESCRIPTIONS, Recipe
from trtspec.recipe.yaml_tree import RecipeNode, locate, plain, put, without

EXPECTED = {
    "bool_type": "true or false",
    "dict_type": "a mapping",
    "float_type": "a number",
    "int_type": "an integer",
    "list_type": "a list",
    "model_type": "a mapping",
    "string_type": "a string",
}
BOUNDS = {
    "greater_than": "more than {gt:g}",
    "greater_than_equal": "at least {ge:g}",
    "less_than": "less than {lt:g}",
    "less_than_equal": "at most {le:g}",
}
ITEM = "*"  # replaces item numbers in key paths
BOOLEAN_WORDS = {"yes": "true", "on": "true", "no": "false", "off": "false"}

Explanation = tuple[str, str, str | None]  # code, message, hint


def validate_recipe(root: RecipeNode, diagnostics: list[Diagnostic]) -> Recipe | None:
    """Convert a tree to a Recipe; if it is invalid, add up to MAX_DIAGNOSTICS + 1 diagnostics and return None."""
    try:
        return Recipe.model_validate(plain(root))
    except ValidationError as error:
        if (adapted := _adapted(root, error)) is not root:
            return validate_recipe(adapted, diagnostics)
        findings = sorted(
            error.errors(include_url=False), key=lambda finding: sort_position(_locate_finding(root, finding)[0])
        )
        for finding in findings[: MAX_DIAGNOSTICS + 1]:
            mark, path = _locate_finding(root, finding)
            code, message, hint = _explain(finding, path, locate(root, path)[0])
            diagnostics.append(Diagnostic(".".join(path), code, message, hint).at(mark))
        return None


def _adapted(root: RecipeNode, error: ValidationError) -> RecipeNode:
    """Return the tree with values from `--set` converted to the types that the schema requires.

    A number becomes a string where a string is required, because the shell removes quotes. A mapping or list that is
    set to null is removed.
    """
    for finding in error.errors(include_url=False):
        *above, last = path = [str(part) for part in finding["loc"]]
        node, written = locate(root, path)
        if not written or node.mark.line is not None:
            continue
        is_number = isinstance(node.value, (int, float)) and all(isinstance(part, str) for part in finding["loc"])
        if finding["type"] == "string_type" and is_number:
            root = put(root, path, replace(node, value=node.raw))
        elif finding["type"] in ("model_type", "dict_type", "list_type") and node.value is None:
            root = put(root, above, without(locate(root, above)[0], last))
    return root


def find_mark(root: RecipeNode, code: str, path: Sequence[str]) -> Mark:
    """Return the position of a value, or its key's position if the key is unknown or the value is not in the file."""
    node, written = locate(root, path)
    return node.mark if written and code != "unknown-key" else node.key_mark


def _locate_finding(root: RecipeNode, finding: Any) -> tuple[Mark, tuple[str, ...]]:
    path = tuple(str(part) for part in finding["loc"] if part != "[key]")
    key_at_fault = finding["type"] == "extra_forbidden" or finding["loc"][-1] == "[key]"
    return find_mark(root, "unknown-key" if key_at_fault else "", path), path


def _explain(finding: Any, path: tuple[str, ...], node: RecipeNode) -> Explanation:
    kind, context = finding["type"], finding.get("ctx", {})
    if kind == "extra_forbidden":
        return "unknown-key", f"unknown key {quote_value(path[-1])}", _key_hint(path)
    if kind == "missing":
        line = f"add the line schema: {FORMAT}" if path == ("schema",) else recipe_keys().get(".".join(path))
        return "missing-key", f"{path[-1]} is required", line
    if finding["loc"][-1] == "[key]":
        return "unknown-key", f"{quote_value(path[-1])} is not {PATTERN_DESCRIPTIONS[context['pattern']]}", None
    return explain_value(finding, path[-1], node.raw)


def explain_value(finding: Any, key: str, raw: str = "") -> Explanation:
    """Return code, message and hint for an invalid value of a recipe or of method options; `raw` is its source text."""
    kind, value, context = finding["type"], finding["input"], finding.get("ctx", {})
    if kind == "recipe":
        return context["code"], context["message"], context["hint"]
    if kind in EXPECTED:
        return "wrong-type", f"expected {EXPECTED[kind]}, got {_described(value)}", _retyped(kind, value, raw)
    if kind in BOUNDS:
        return "out-of-range", f"{key} must be {BOUNDS[kind].format(**context)}, got {value}", None
    if kind == "literal_error":
        known = re.findall(r"'([^']*)'", context["expected"])
        return "bad-value", f"{quote_value(value)} is not one of {', '.join(known)}", did_you_mean(str(value), known)
    if kind == "string_pattern_mismatch":
        pattern = context["pattern"]
        near = re.sub("[-. ]", "_", value.lower())  # draft_target for Draft-Target
        hint = f"did you mean {near!r}?" if pattern == IDENTIFIER and re.fullmatch(IDENTIFIER, near) else None
        return "bad-value", f"{quote_value(value)} is not {PATTERN_DESCRIPTIONS[pattern]}", hint
    return "bad-value", simplify_pydantic_message(finding["msg"]), None


def _described(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, (dict, list)):
        return "a mapping" if isinstance(value, dict) else "a list"
    if isinstance(value, bool):
        return str(value).lower()
    return f"the {'string' if isinstance(value, str) else 'number'} {quote_value(value)}"


def _retyped(kind: str, value: Any, raw: str) -> str | None:
    """Return a hint that corrects the quotes of a value or the spelling of a boolean, or None."""
    if kind == "string_type" and raw:
        return f'quote it: "{raw}"'
    if kind == "bool_type" and str(value).lower() in BOOLEAN_WORDS:
        return f"write {BOOLEAN_WORDS[str(value).lower()]}"
    if kind in ("int_type", "float_type") and isinstance(value, str) and re.fullmatch(r"-?[0-9]+(\.[0-9]+)?", value):
        return f"remove the quotes: {value}"
    return None


def _key_hint(path: tuple[str, ...]) -> str | None:
    """Return a hint for an unknown key: a similar key of its mapping, the same key elsewhere, or all known keys."""
    parents = [ITEM if part.isdigit() else part for part in path[:-1]]
    here = [key.rsplit(".", 1)[-1] for key in recipe_keys() if key.split(".")[:-1] == parents]
    elsewhere = [key for key in recipe_keys() if key.rsplit(".", 1)[-1] == path[-1]]
    near = did_you_mean(path[-1], here)
    return near or (f"did you mean {elsewhere[0]!r}?" if elsewhere else f"known keys here: {', '.join(here)}")


@cache
def recipe_keys() -> dict[str, str]:
    """Return all recipe keys by dotted path with their descriptions; `*` stands for the index of a list item."""
    return dict(_iter_keys(Recipe, "")) | {"extends": "another recipe", "matrix": "several recipes"}


def _iter_keys(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, str]]:
    for name, field in model.model_fields.items():
        path = prefix + (field.alias or name)
        yield path, field.description or ""
        for kind in (field.annotation, *get_args(field.annotation)):
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                item = f"{ITEM}." if get_origin(field.annotation) is list else ""
                yield from _iter_keys(kind, f"{path}.{item}")


BY_CODE = {
    "control-character": "remove it; tabs and line ends are the only control characters allowed in a text",
    "placement": "set serving.placement, or use fewer GPUs with parallel",
    "matrix": "write it as matrix: {speculation.draft_len: [3, 5]}",
    "syntax": "check the quotes, brackets, colons and the indentation up to this place",
    "unknown-key": "remove it",
    "unreadable": "name a readable .yaml recipe file, or a recipe that `trtspec recipes` lists",
    "unused": "remove it",
}
# Messages with these codes contain the fix, or their hint depends on the cause.
SELF_EXPLANATORY = ("bad-value", "checkpoint", "out-of-range", "wrong-type")


def with_hint(diagnostic: Diagnostic) -> Diagnostic:
    """Return the diagnostic with a default hint for its code or recipe key, unless its own text includes the fix."""
    if diagnostic.hint or diagnostic.code in SELF_EXPLANATORY:
        return diagnostic
    hint, path = BY_CODE.get(diagnostic.code), diagnostic.path
    if not hint and diagnostic.severity == "error":  # a hint is optional for warnings
        while path and path not in recipe_keys():
            path = path.rpartition(".")[0]
        hint = f"{path}: {recipe_keys()[path]}" if path else None
    return replace(diagnostic, hint=hint)
