# SPDX-License-Identifier: Apache-2.0
"""Editing of one section of a recipe file; all other text, including comments, is preserved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from trtspec.core.diagnostics import RecipeError
from trtspec.core.errors import TrtspecError
from trtspec.core.files import create_file, replace_file, temporary_name
from trtspec.recipe.load import load_recipe

INDENT = "  "


def write_section(path: Path, section: str, wanted: dict[str, Any]) -> bool:
    """Write a top-level section of a recipe file; return True if the file changed.

    Keys with unchanged values keep their lines and comments; other keys are rewritten, added or removed. Raises
    TrtspecError, and leaves the file unchanged, if the result would be invalid or cannot be written.
    """
    check_editable(path)
    before = path.read_text(encoding="utf-8")
    after = edit_section(before, section, wanted)
    if after == before:
        return False
    temporary = path.with_name(
        f"{temporary_name(path.stem)}{path.suffix}"
    )  # same directory, because recipes contain relative paths
    try:
        create_file(temporary, after.encode())
        load_recipe(temporary)
        replace_file(path, after.encode())
    except (OSError, RecipeError) as error:
        message = error.diagnostics[0].message if isinstance(error, RecipeError) else error.strerror
        raise TrtspecError(f"not written: {message}", where=str(path), hint="edit it by hand") from None
    finally:
        temporary.unlink(missing_ok=True)
    return True


def check_editable(path: Path) -> None:
    """Raise TrtspecError unless the recipe is a file; shipped recipes given by name cannot be edited."""
    if not path.is_file():
        raise TrtspecError("no such file; shipped recipes cannot be edited", where=str(path), hint="name your own file")


def edit_section(text: str, section: str, wanted: dict[str, Any]) -> str:
    """Return the text of a recipe with the values of a top-level section replaced by `wanted`."""
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    pairs = root.value if isinstance(root, yaml.MappingNode) else []
    pair = next((pair for pair in pairs if pair[0].value == section), None)
    lines = text.splitlines(keepends=True)
    body = "".join([f"{section}:\n", *(_line(INDENT, *item) for item in wanted.items())])
    if pair is None:
        return text + ("" if not lines or lines[-1].endswith("\n") else "\n") + body
    node = pair[1]
    if not isinstance(node, yaml.MappingNode) or node.flow_style or not node.value:
        return _with_lines(lines, pair[0].start_mark.line, _last_line(node), body)
    return _edited_block(lines, node, wanted)


def _edited_block(lines: list[str], node: yaml.MappingNode, wanted: dict[str, Any]) -> str:
    """Rewrite the changed keys of a block mapping, from last to first, so that line numbers stay valid."""
    indent = " " * node.value[0][0].start_mark.column
    there = {key.value for key, _ in node.value}
    end = _last_line(node)
    added = "".join(_line(indent, key, value) for key, value in wanted.items() if key not in there)
    if added:
        lines[end] = lines[end] if lines[end].endswith("\n") else lines[end] + "\n"
        lines.insert(end + 1, added)
    for key, value in reversed(node.value):
        if key.value in wanted and yaml.SafeLoader("").construct_document(value) == wanted[key.value]:
            continue
        replacement = _line(indent, key.value, wanted[key.value]) if key.value in wanted else ""
        first, last = key.start_mark.line, _last_line(value)
        if replacement and first == last:
            replacement = replacement.rstrip("\n") + lines[last][value.end_mark.column :]
        lines = _with_lines(lines, first, last, replacement).splitlines(keepends=True)
    return "".join(lines)


def _last_line(node: yaml.Node) -> int:
    """Return the 0-based line of a node's last character; PyYAML's end mark is at the next token instead."""
    if isinstance(node, yaml.CollectionNode) and node.value and not node.flow_style:
        last = node.value[-1]
        return _last_line(last[1] if isinstance(last, tuple) else last)
    mark = node.end_mark
    return max(node.start_mark.line, mark.line - (mark.column == 0))


def _with_lines(lines: list[str], first: int, last: int, text: str) -> str:
    return "".join([*lines[:first], text, *lines[last + 1 :]])


def _line(indent: str, key: str, value: Any) -> str:
    """Return one line of YAML with a key and its value in flow style."""
    written = yaml.safe_dump(value, default_flow_style=True, width=1 << 20).removesuffix("...\n").strip()
    return f"{indent}{key}: {written}\n"
