# SPDX-License-Identifier: Apache-2.0
"""YAML text as a tree of values with source locations, and pure functions on such trees. Independent of the schema.

The parser enforces size limits while it reads, rejects tags, aliases, merge keys and duplicate keys, and resolves plain
scalars by the core schema of YAML 1.2. It is built on the events of PyYAML's Python parser. PyYAML's C parser overflows
the stack on deep nesting. PyYAML's constructors implement YAML 1.1 (`no` is false, `1:30` is 90) and silently keep the
last of two equal keys.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import yaml

from trtspec.core.diagnostics import TOKEN, Diagnostic, Mark, mask_tokens, raise_recipe_error

MAX_DEPTH = 32
MAX_NODES = 20_000


@dataclass(frozen=True)
class RecipeNode:
    """A YAML value (scalar, {key: RecipeNode} or [RecipeNode]) with its mark, its key's mark and its source text.

    `base` is the directory that relative paths in this value start from.
    """

    value: Any
    mark: Mark
    key_mark: Mark
    base: Path
    raw: str = ""


def plain(node: RecipeNode) -> Any:
    """Return the value of a node as nested dicts, lists and scalars."""
    if isinstance(node.value, dict):
        return {key: plain(child) for key, child in node.value.items()}
    if isinstance(node.value, list):
        return [plain(child) for child in node.value]
    return node.value


def same(one: RecipeNode, other: RecipeNode) -> bool:
    """Return True if two nodes have equal values of equal types (1 differs from true and from 1.0)."""
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
    """Yield a node and all its descendants, parents first."""
    yield node
    below = node.value.values() if isinstance(node.value, dict) else node.value if isinstance(node.value, list) else ()
    for child in below:
        yield from walk(child)


def locate(root: RecipeNode, path: Sequence[str]) -> tuple[RecipeNode, bool]:
    """Return (node, True) for the node at `path`, or (closest existing ancestor, False)."""
    node = root
    for part in path:
        child = _child(node.value, part)
        if child is None:
            return node, False
        node = child
    return node, True


def merge(child: RecipeNode, parent: RecipeNode) -> RecipeNode:
    """Return `child` merged over `parent`: mappings are merged recursively; any other value of the child wins."""
    if not (isinstance(child.value, dict) and isinstance(parent.value, dict)):
        return child
    merged = {key: merge(node, parent.value[key]) if key in parent.value else node for key, node in child.value.items()}
    return replace(child, value={**parent.value, **merged})


def split_path(dotted: str) -> tuple[str, ...] | None:
    """Split a dotted path into its parts; return None if a part is empty or there are too many."""
    parts = tuple(dotted.split("."))
    return parts if all(parts) and len(parts) <= MAX_DEPTH else None


def put(root: RecipeNode, path: Sequence[str], value: RecipeNode) -> RecipeNode:
    """Return a copy of the tree with `value` at `path`; scalars and lists on the path are replaced by mappings."""
    if not path:
        return value
    around = root if isinstance(root.value, dict) else replace(value, value={}, raw="")
    child = around.value.get(path[0], replace(value, value=None))
    return replace(around, value={**around.value, path[0]: put(child, path[1:], value)})


def without(root: RecipeNode, *keys: str) -> RecipeNode:
    """Return a copy of a mapping node without `keys`."""
    return replace(root, value={key: node for key, node in root.value.items() if key not in keys})


def _child(value: Any, part: str) -> RecipeNode | None:
    if isinstance(value, dict):
        return value.get(part)
    if isinstance(value, list) and re.fullmatch("[0-9]{1,5}", part) and int(part) < len(value):
        child: RecipeNode = value[int(part)]
        return child
    return None


LINE_BREAK = re.compile("\r\n|[\r\n\x85\u2028\u2029]")
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")

CONSTANTS = dict.fromkeys(("", "~", "null", "Null", "NULL")) | {
    spelling: word == "true" for word in ("true", "false") for spelling in (word, word.title(), word.upper())
}
INTEGER = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
FLOAT = re.compile(
    r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
)

# PyYAML's error context -> the opening and the closing character, which is None for a quote.
OPENED: dict[str | None, tuple[str, str | None]] = {
    "while parsing a flow mapping": ("{", "}"),
    "while parsing a flow sequence": ("[", "]"),
    "while scanning a quoted scalar": ("a quote", None),
}


@dataclass(frozen=True)
class RecipeText:
    """A source text: its name for messages, the base directory of relative paths, and its lines, if any are quoted."""

    name: str
    base: Path
    lines: tuple[str, ...] = ()

    @classmethod
    def of(cls, name: str, base: Path, text: str) -> RecipeText:
        """Create a RecipeText with lines, in which API tokens are masked because diagnostics may quote lines."""
        return cls(name, base, tuple(LINE_BREAK.split(mask_tokens(text))))

    def mark(self, line: int, column: int) -> Mark:
        """Return the Mark of a 0-based line and column."""
        return Mark(self.name, line + 1, column + 1, self.lines[line]) if self.lines else Mark(self.name)


def parse_document(
    text: str, source: RecipeText, diagnostics: list[Diagnostic], path: tuple[str, ...] = ()
) -> RecipeNode:
    """Parse one YAML document into a tree; `path` is its place in the recipe, and an empty text becomes null.

    Invalid syntax and exceeded limits raise RecipeError; other errors are added to `diagnostics`, and parsing
    continues.
    """
    return _Builder(_guarded(text, source), source, diagnostics).document(path)


def resolve_scalar(text: str) -> bool | int | float | str | None:
    """Return the value of a plain YAML 1.2 scalar; an integer of more than 64 characters becomes infinity."""
    if text in CONSTANTS:
        return CONSTANTS[text]
    if INTEGER.fullmatch(text):
        # int() raises ValueError for strings of thousands of digits.
        return int(text, {"0o": 8, "0x": 16}.get(text[:2], 10)) if len(text) <= 64 else math.inf
    if FLOAT.fullmatch(text):
        return float(re.sub(r"\.(?=[inIN])", "", text))
    return text


def _guarded(text: str, source: RecipeText) -> Iterator[Any]:
    """Yield parser events; raise RecipeError for exceeded limits, a second document or an alias."""
    depth = nodes = documents = 0
    for event in _events(text, source):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        nodes += isinstance(event, yaml.NodeEvent)
        documents += isinstance(event, yaml.DocumentStartEvent)
        mark = source.mark(event.start_mark.line, event.start_mark.column)
        if depth > MAX_DEPTH:
            raise_recipe_error(mark, "too-deep", f"nested deeper than {MAX_DEPTH} levels", "is it a recipe?")
        if nodes > MAX_NODES:
            raise_recipe_error(mark, "too-large", f"more than {MAX_NODES:,} values", "is it a recipe?")
        if documents > 1:
            raise_recipe_error(
                mark, "many-documents", "a second document starts here", "one recipe per file; `matrix` makes several"
            )
        if isinstance(event, yaml.AliasEvent):
            hint = "repeat the value; `extends` shares keys between recipes"
            raise_recipe_error(mark, "alias", f"aliases (*{event.anchor}) are not supported", hint)
        yield event


def _events(text: str, source: RecipeText) -> Iterator[Any]:
    mark = source.mark(0, 0)
    events: Iterator[Any] = yaml.parse(text, Loader=yaml.SafeLoader)
    try:
        for event in events:
            mark = source.mark(event.end_mark.line, event.end_mark.column)
            yield event
    except yaml.reader.ReaderError as error:
        before = LINE_BREAK.split(text[: error.position])
        message = f"the character U+{ord(text[error.position]):04X} is not allowed in YAML"
        raise_recipe_error(source.mark(len(before) - 1, len(before[-1])), "syntax", message, "remove it")
    except yaml.MarkedYAMLError as error:
        if place := error.problem_mark:
            mark = source.mark(place.line, place.column)
        if error.context in OPENED and (start := error.context_mark):
            _stop_unclosed(error, source.mark(start.line, start.column), mark)
        message = "not valid YAML: " + ", ".join(part for part in (error.context, error.problem) if part)
        raise_recipe_error(mark, "syntax", message, _syntax_hint(error))
    except (ValueError, OverflowError) as error:
        # PyYAML does not catch errors of chr() and int().
        raise_recipe_error(mark, "syntax", f"not valid YAML: a bad escape or directive after this place ({error})")


def _stop_unclosed(error: yaml.MarkedYAMLError, opened: Mark, found: Mark) -> NoReturn:
    """Raise RecipeError at the opening bracket or quote, because PyYAML reports the error many lines later."""
    opening, closing = OPENED[str(error.context)]
    if closing is None:
        raise_recipe_error(
            opened, "syntax", "not valid YAML: the quote that opens here is not closed", "close it in this line"
        )
    at_end = "<stream end>" in str(error.problem)
    if opened.line == found.line and not at_end:
        raise_recipe_error(found, "syntax", f"not valid YAML: expected `,` or `{closing}` here", _syntax_hint(error))
    hint = f"close it with `{closing}`" + ("" if at_end else f", or add the `,` missing before line {found.line}")
    raise_recipe_error(opened, "syntax", f"not valid YAML: the `{opening}` here is not closed", hint)


def _syntax_hint(error: yaml.MarkedYAMLError) -> str | None:
    problem = str(error.problem)
    if "'\\t'" in problem:
        return "indent with spaces, not tabs"
    return "quote a value that contains `: `" if "mapping values are not allowed" in problem else None


class _Builder:
    """Builder of a tree from parser events; reports invalid entries and skips them."""

    def __init__(self, events: Iterator[Any], source: RecipeText, diagnostics: list[Diagnostic]) -> None:
        self.events = events
        self.source = source
        self.diagnostics = diagnostics

    def document(self, path: tuple[str, ...]) -> RecipeNode:
        start = Mark(self.source.name)
        root = RecipeNode(None, start, start, self.source.base)
        for event in self.events:
            if isinstance(event, yaml.NodeEvent):
                root = self.node(event, path)
        return root

    def node(self, event: Any, path: tuple[str, ...], key_mark: Mark | None = None) -> RecipeNode:
        mark = self.source.mark(event.start_mark.line, event.start_mark.column)
        if event.tag:
            self.report(mark, "tag", path, f"tags ({event.tag}) are not supported", "quote the value instead")
        if isinstance(event, yaml.ScalarEvent):
            value, raw = self.scalar(event, path, mark), event.value
        else:
            value, raw = self.items(path) if isinstance(event, yaml.SequenceStartEvent) else self.entries(path), ""
        return RecipeNode(value, mark, key_mark or mark, self.source.base, raw)

    def scalar(self, event: Any, path: tuple[str, ...], mark: Mark) -> Any:
        value = resolve_scalar(event.value) if event.style is None else event.value
        if isinstance(value, (int, float)) and not abs(value) < 2**63:
            self.report(mark, "out-of-range", path, "a number in a recipe must be finite and fit in 64 bits")
        if CONTROL.search(event.value):
            self.report(mark, "control-character", path, "control characters are not allowed in a recipe")
        if TOKEN.search(event.value):
            hint = "revoke it if it was shared; write env:NAME (or file:PATH) instead"
            self.report(mark, "secret", path, "this looks like a token; a recipe must not contain secrets", hint)
        return value

    def items(self, path: tuple[str, ...]) -> list[RecipeNode]:
        found: list[RecipeNode] = []
        while not isinstance(event := next(self.events), yaml.SequenceEndEvent):
            found.append(self.node(event, (*path, str(len(found)))))
        return found

    def entries(self, path: tuple[str, ...]) -> dict[str, RecipeNode]:
        found: dict[str, RecipeNode] = {}
        while not isinstance(event := next(self.events), yaml.MappingEndEvent):
            key = self.node(event, path)
            below = (*path, key.raw)
            value = self.node(next(self.events), below, key.mark)
            if self.accepts(key, below, found):
                found[key.value] = value
        return found

    def accepts(self, key: RecipeNode, path: tuple[str, ...], found: dict[str, RecipeNode]) -> bool:
        if not isinstance(key.value, str):
            hint = f'quote it: "{key.raw}"' if key.raw else "write the name of a key before the colon"
            self.report(key.mark, "non-string-key", path, "a key must be a string", hint)
        elif key.value == "<<":
            hint = "`extends: other.yaml` shares keys between recipes"
            self.report(key.mark, "merge-key", path, "merge keys (<<) are not supported", hint)
        elif key.value in found:
            first, again = found[key.value].key_mark.line, key.mark.line
            lines = f", in lines {first} and {again}" if first else ""
            self.report(key.mark, "duplicate-key", path, f"duplicate key{lines}", "keep one, with the keys of both")
        else:
            return True
        return False

    def report(self, mark: Mark, code: str, path: tuple[str, ...], message: str, hint: str | None = None) -> None:
        self.diagnostics.append(Diagnostic(".".join(path), code, message, hint).at(mark))
