# SPDX-License-Identifier: Apache-2.0
"""A document as a tree of values with source locations, and pure operations on it.

This module does not depend on YAML syntax or the schema.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trtspec.core.diagnostics import Mark

MAX_DEPTH = 32
MAX_NODES = 20_000


@dataclass(frozen=True)
class RecipeNode:
    """A value (scalar, {key: Node} or [Node]) with its mark, the mark of its key, and its text as written.

    `base` is the directory for relative paths in this value.
    """

    value: Any
    mark: Mark
    key_mark: Mark
    base: Path
    raw: str = ""


def plain(node: RecipeNode) -> Any:
    """Return the values without locations."""
    if isinstance(node.value, dict):
        return {key: plain(child) for key, child in node.value.items()}
    if isinstance(node.value, list):
        return [plain(child) for child in node.value]
    return node.value


def same(one: RecipeNode, other: RecipeNode) -> bool:
    """Return whether two nodes have equal values of equal types (1 differs from true and from 1.0)."""
    if type(one.value) is not type(other.value):
        return False
    if isinstance(one.value, dict):
        return one.value.keys() == other.value.keys() and all(
            same(one.value[key], other.value[key]) for key in one.value
        )
    if isinstance(one.value, list):
        return len(one.value) == len(other.value) and all(map(same, one.value, other.value))
    return bool(one.value == other.value)


def walk(node: RecipeNode) -> Iterator[RecipeNode]:
    """Yield the node and all its descendants."""
    yield node
    below = node.value.values() if isinstance(node.value, dict) else node.value if isinstance(node.value, list) else ()
    for child in below:
        yield from walk(child)


def locate(root: RecipeNode, path: Sequence[str]) -> tuple[RecipeNode, bool]:
    """Return the node at `path` and True, or its nearest existing ancestor and False."""
    node = root
    for part in path:
        child = _child(node.value, part)
        if child is None:
            return node, False
        node = child
    return node, True


def merge(child: RecipeNode, parent: RecipeNode) -> RecipeNode:
    """Return `child` merged over `parent`: mappings merge key by key, all other values of the child win."""
    if not (isinstance(child.value, dict) and isinstance(parent.value, dict)):
        return child
    merged = {key: merge(node, parent.value[key]) if key in parent.value else node for key, node in child.value.items()}
    return replace(child, value={**parent.value, **merged})


def split_path(dotted: str) -> tuple[str, ...] | None:
    """Return the parts of a dotted path, or None if it is not one."""
    parts = tuple(dotted.split("."))
    return parts if all(parts) and len(parts) <= MAX_DEPTH else None


def put(root: RecipeNode, path: Sequence[str], value: RecipeNode) -> RecipeNode:
    """Return `root` with `value` at `path`; non-mappings on the way become mappings with the mark of `value`."""
    if not path:
        return value
    around = root if isinstance(root.value, dict) else replace(value, value={}, raw="")
    child = around.value.get(path[0], replace(value, value=None))
    return replace(around, value={**around.value, path[0]: put(child, path[1:], value)})


def without(root: RecipeNode, *keys: str) -> RecipeNode:
    """Return a mapping without the given keys."""
    return replace(root, value={key: node for key, node in root.value.items() if key not in keys})


def _child(value: Any, part: str) -> RecipeNode | None:
    if isinstance(value, dict):
        return value.get(part)
    if isinstance(value, list) and re.fullmatch("[0-9]{1,5}", part) and int(part) < len(value):
        child: RecipeNode = value[int(part)]
        return child
    return None
