# SPDX-License-Identifier: Apache-2.0
"""Expansion of `matrix:` into several recipe trees, by the rules of GitHub Actions.

    matrix:
      speculation.draft_len: [3, 5]           an axis: every value is combined with all values of the other axes
      target.dtype: [float16, bfloat16]
      exclude: [{speculation.draft_len: 3, target.dtype: float16}]
      include: [{speculation.draft_len: 7, name: seven}]

`exclude` is applied first. Then each entry of `include` adds its keys to all combinations whose axis values it does not
contradict. An entry that contradicts all of them becomes a new combination.

A combination is named after its axis values, as in NAME-draft_len-3-dtype-bfloat16. Keys added by `include` do not
change the name.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from hashlib import sha256
from itertools import chain, islice, product

from trtspec.core.diagnostics import Diagnostic
from trtspec.core.errors import TrtspecError
from trtspec.core.registry import did_you_mean
from trtspec.recipe.yaml_tree import RecipeNode, locate, plain, put, same, split_path, walk, without

MAX_COMBINATIONS = 256
MAX_EXPANDED_NODES = 200_000
MAX_NAME, DIGITS = 63, 6

Choice = dict[str, RecipeNode]  # dotted recipe path -> value


@dataclass(frozen=True)
class RecipeMatrix:
    """The parts of `matrix:`: the values of each axis, and the entries of `include` and `exclude`."""

    axes: dict[str, list[RecipeNode]]
    include: list[Choice]
    exclude: list[Choice]

    def choices(self) -> list[Choice]:
        """Return all combinations that are not excluded, with the keys of `include` added."""
        combinations = product(*self.axes.values()) if self.axes else ()
        choices = [dict(zip(self.axes, values, strict=True)) for values in combinations]
        kept = [choice for choice in choices if not any(_agrees(entry, choice, entry) for entry in self.exclude)]
        added = []
        for entry in self.include:
            matching = [choice for choice in kept if _agrees(entry, choice, self.axes)]
            for choice in matching:
                choice.update(entry)
            added += [] if matching else [dict(entry)]
        return kept + added

    def naming_keys(self, choice: Choice) -> list[str]:
        """Return the keys that form the name of a combination: the axes, or all its keys if `include` created it."""
        made_of_axes = all(key in choice and any(same(choice[key], one) for one in self.axes[key]) for key in self.axes)
        return list(self.axes if self.axes and made_of_axes else choice)


def expand_matrix(root: RecipeNode, diagnostics: list[Diagnostic]) -> list[RecipeNode]:
    """Return one tree per combination, each with its own name; without a matrix, return the tree itself."""
    node = root.value.get("matrix")
    base = without(root, "matrix")
    if node is None or node.value is None:
        return [base]
    reader = _Reader(node, diagnostics)
    matrix = reader.read()
    if matrix is None:
        return [base]
    choices = matrix.choices()
    labels = _labels({key for choice in choices for key in choice})
    trees = [_applied(base, choice, labels, matrix.naming_keys(choice)) for choice in choices]
    reader.check_overrides(base, choices)
    return trees if reader.accepts(trees) else [base]


def choose_cells(trees: list[RecipeNode], patterns: Sequence[str], where: str) -> list[RecipeNode]:
    """Return the trees whose names match any of the fnmatch patterns; without patterns, return all trees.

    Raises TrtspecError, which lists all names, for a pattern that matches none.
    """
    names = [str(plain(tree.value["name"])) if "name" in tree.value else "" for tree in trees]
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            message = f"no cell of its matrix is named {pattern!r}"
            raise TrtspecError(message, where=where, hint=f"its cells are {', '.join(names)}")
    fits = [not patterns or any(fnmatchcase(name, pattern) for pattern in patterns) for name in names]
    return [tree for tree, wanted in zip(trees, fits, strict=True) if wanted]


def _agrees(entry: Choice, choice: Choice, keys: Iterable[str]) -> bool:
    """Return True if `entry` and `choice` have equal values for each of `keys` that `entry` contains."""
    return all(same(entry[key], choice[key]) for key in keys if key in entry)


def _applied(base: RecipeNode, choice: Choice, labels: dict[str, str], naming: list[str]) -> RecipeNode:
    """Return the tree with the values of a combination, named after its `naming` keys unless it sets `name`."""
    tree = base
    for key, value in choice.items():
        tree = put(tree, key.split("."), value)
    name = tree.value.get("name")
    if "name" in choice or name is None or not isinstance(name.value, str):
        return tree
    words = [f"{labels[key]}-{_value_text(choice[key])}" for key in naming]
    return put(tree, ["name"], replace(name, value=_shortened("-".join([name.value, *words]))))


def _labels(keys: Collection[str]) -> dict[str, str]:
    """Return a label for each dotted key: its shortest suffix that no other key shares."""
    shared = Counter(end for key in keys for end in _ends(key))
    return {key: _slug(next((end for end in _ends(key) if shared[end] == 1), key)) for key in keys}


def _ends(key: str) -> list[str]:
    """Return the suffixes of a dotted key, shortest first: c, b.c, a.b.c."""
    parts = key.split(".")
    return [".".join(parts[-count:]) for count in range(1, len(parts) + 1)]


def _value_text(node: RecipeNode, between: str = "-_.") -> str:
    """Format a value for a name; nested lists use other separators, so that [[0], [0, 1]] becomes 0-0_1."""
    inner = between[1:] or between
    if isinstance(node.value, dict):
        return (
            between[0].join(f"{_slug(key)}-{_value_text(child, inner)}" for key, child in node.value.items()) or "none"
        )
    if isinstance(node.value, list):
        return between[0].join(_value_text(child, inner) for child in node.value) or "none"
    return _slug(node.raw)


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9._]+", "-", text.lower()).strip("-._") or "none"


def _shortened(name: str) -> str:
    """Truncate a name to MAX_NAME characters, with a digest of the full name at its end to keep it unique."""
    if len(name) <= MAX_NAME:
        return name
    digest = sha256(name.encode()).hexdigest()[:DIGITS]
    return f"{name[: MAX_NAME - DIGITS - 1].rstrip('-._')}-{digest}"


class _Reader:
    """Parser of a `matrix:` node that adds all its problems to `diagnostics`."""

    def __init__(self, node: RecipeNode, diagnostics: list[Diagnostic]) -> None:
        self.node = node
        self.diagnostics = diagnostics

    def read(self) -> RecipeMatrix | None:
        found = len(self.diagnostics)
        if not isinstance(self.node.value, dict):
            self.report(self.node, "", "expected a mapping of recipe paths to lists of values")
            return None
        axes = {key: self.axis(key, node) for key, node in without(self.node, "include", "exclude").value.items()}
        matrix = RecipeMatrix(axes, self.entries("include"), self.entries("exclude"))
        for entry in matrix.exclude:
            for key in set(entry) - set(axes):
                self.report(entry[key], ".exclude", f"{key!r} is not an axis of the matrix", did_you_mean(key, axes))
        combinations = math.prod(map(len, axes.values())) + len(matrix.include)
        if max(combinations, len(matrix.exclude)) > MAX_COMBINATIONS:
            self.report(self.node, "", f"more than {MAX_COMBINATIONS} combinations", "split the recipe")
        return matrix if len(self.diagnostics) == found else None

    def axis(self, key: str, node: RecipeNode) -> list[RecipeNode]:
        self.check_key(key, node)
        if isinstance(node.value, list) and node.value:
            return [replace(value, key_mark=node.key_mark) for value in node.value]
        self.report(node, f".{key}", "expected a list of at least one value")
        return []

    def entries(self, key: str) -> list[Choice]:
        node = self.node.value.get(key)
        if node is None or node.value is None:
            return []
        if not isinstance(node.value, list) or not all(isinstance(entry.value, dict) for entry in node.value):
            self.report(node, f".{key}", "expected a list of mappings of recipe paths to values")
            return []
        for entry in node.value:
            for path, value in entry.value.items():
                self.check_key(path, value)
        return [entry.value for entry in node.value]

    def check_key(self, key: str, node: RecipeNode) -> None:
        path = split_path(key)
        if path is None or path[0] in ("extends", "matrix"):
            self.report(node, "", f"{key!r} is not a path such as speculation.draft_len")

    def check_overrides(self, base: RecipeNode, choices: list[Choice]) -> None:
        """Report `--set` overrides of keys that the matrix also sets, because one of the two values would be lost."""
        for key, value in {key: value for choice in choices for key, value in choice.items()}.items():
            node, written = locate(base, key.split("."))
            if written and any(part.mark.line is None for part in walk(node)):
                hint = "set another key, or edit the matrix"
                self.report(value, f".{key}", "both the matrix and --set set this key", hint)

    def accepts(self, trees: list[RecipeNode]) -> bool:
        found = len(self.diagnostics)
        if not trees:
            self.report(self.node, "", "no combinations are left")
        if sum(1 for _ in islice(chain.from_iterable(map(walk, trees)), MAX_EXPANDED_NODES + 1)) > MAX_EXPANDED_NODES:
            message = f"more than {MAX_EXPANDED_NODES:,} values in all combinations"
            self.report(self.node, "", message, "split the recipe")
        names = Counter(str(plain(tree.value["name"])) for tree in trees if "name" in tree.value)
        for name in (name for name, count in names.items() if count > 1):
            message = f"{names[name]} combinations have the name {name!r}"
            self.report(self.node, "", message, "give each a `name` in include")
        return len(self.diagnostics) == found

    def report(self, node: RecipeNode, below: str, message: str, hint: str | None = None) -> None:
        self.diagnostics.append(Diagnostic(f"matrix{below}", "matrix", message, hint).at(node.key_mark))
