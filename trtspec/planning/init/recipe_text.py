# SPDX-License-Identifier: Apache-2.0
"""A proposed recipe as a list of settings in file order, and its rendering as plain data and as YAML text."""

from __future__ import annotations

import json
import os
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trtspec.recipe.schema import is_directory

WIDTH = 120
SCHEMA_FILE = "trtspec-recipe.schema.json"
HEAD = f"""\
# yaml-language-server: $schema={SCHEMA_FILE}
# Written by trtspec init: a proposal with the reason for each line. Change what you know better.
"""
PLAIN = re.compile(r"[A-Za-z./~][A-Za-z0-9_./@-]*")
WORDS = {"true", "false", "null", "~", ".inf", ".nan"}  # plain scalars that YAML does not read as strings


@dataclass(frozen=True)
class RecipeChoice:
    """The value of a recipe key, given by its dotted path, with the reason for it; the value None omits the key."""

    path: str
    value: Any
    why: str


def build_document(choices: Sequence[RecipeChoice]) -> dict[str, Any]:
    """Return the settings as the nested plain data of a recipe."""
    document: dict[str, Any] = {}
    for choice in choices:
        *sections, key = choice.path.split(".")
        section = document
        for name in sections if choice.value is not None else ():
            section = section.setdefault(name, {})
        if choice.value is not None:
            section[key] = choice.value
    return document


def relative_to(choices: Sequence[RecipeChoice], base: Path) -> list[RecipeChoice]:
    """Return the settings with model directories made relative to `base`."""
    return [
        replace(choice, value=relative_model(choice.value, base)) if choice.path.endswith(".model") else choice
        for choice in choices
    ]


def relative_model(model: str, base: Path) -> str:
    """Return a model as spelled in a recipe in directory `base`: a relative directory, or an unchanged hub id."""
    if not is_directory(model):
        return model
    relative = os.path.relpath(model, base)
    return relative if relative.startswith("..") else f"./{relative}"


def render(choices: Sequence[RecipeChoice]) -> str:
    """Return the YAML text: one line per setting, with its reason as a comment at its end or, if long, above it."""
    lines: list[str] = []
    written: set[tuple[str, ...]] = set()
    for choice in choices:
        *sections, key = choice.path.split(".")
        for depth in range(len(sections) if choice.value is not None else 0):
            if (section := tuple(sections[: depth + 1])) not in written:
                lines.append(f"{'  ' * depth}{section[-1]}:")
                written.add(section)
        lines += _lines(choice, key, "  " * len(sections))
    return HEAD + "\n".join(lines) + "\n"


def _lines(choice: RecipeChoice, key: str, indent: str) -> Iterator[str]:
    why = " ".join("".join(char if char.isprintable() else " " for char in choice.why).split())
    if choice.value is None:
        yield from _comment(f"no {key}: {why}", indent)
        return
    line = f"{indent}{key}: {_written(choice.value)}"
    if not why or len(line) + len(why) + 4 <= WIDTH:
        yield f"{line}  # {why}" if why else line
        return
    yield from _comment(why, indent)
    yield line


def _comment(text: str, indent: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# ")


def _written(value: Any) -> str:
    """Return a value in YAML's flow style."""
    if isinstance(value, str) and PLAIN.fullmatch(value) and value.lower() not in WORDS:
        return value
    return json.dumps(value, ensure_ascii=False)
