# SPDX-License-Identifier: Apache-2.0
"""`trtspec check`: validate recipes without loading weights."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

import trtspec
from trtspec.cli.options import Cell, Json, Recipes, Set
from trtspec.cli.render import FORMAT_VERSION, count_problems, print_line, print_result, show_diagnostics
from trtspec.core.diagnostics import Diagnostic, RecipeError

if TYPE_CHECKING:
    from trtspec.checkpoints.generation_config import EndIds


class Checked(NamedTuple):
    """Result for one recipe of a file; `name` is None if the file could not be loaded."""

    file: str
    name: str | None
    diagnostics: list[Diagnostic]
    end_ids: EndIds | None = None

    def where(self) -> dict[str, Any]:
        """Return the recipe's name and file, and its end-of-sequence ids with their source."""
        ends = {"end_ids": [*self.end_ids.ids], "end_ids_from": self.end_ids.source} if self.end_ids else {}
        return {"name": self.name, "file": self.file, **ends}


def check(recipes: Recipes, set_: Set = None, cell: Cell = None, json: Json = False) -> None:
    """Validate recipes without loading weights.

    Example: trtspec check recipes/quickstart.yaml
    """
    by_file = [_check(file, set_ or (), cell or ()) for file in dict.fromkeys(recipes)]
    every = [each for checked in by_file for each in checked]
    document = {**_describe(every), "recipes": [_describe([each], **each.where()) for each in every]}

    def show() -> None:
        for checked in by_file:
            _show(checked)

    print_result(document, show, as_json=json)
    raise typer.Exit(0 if document["ok"] else 1)


def _check(file: Path, overrides: Sequence[str], cells: Sequence[str]) -> list[Checked]:
    from trtspec.recipe.load import display_name

    name = display_name(file)
    try:
        found = trtspec.load_recipes(file, overrides=overrides, variants=cells)
    except RecipeError as error:
        return [Checked(name, None, list(error.diagnostics))]
    results = [(loaded.recipe.name, trtspec.check(loaded)) for loaded in found]
    return [Checked(name, recipe, result.diagnostics, result.end_ids) for recipe, result in results]


def _show(checked: Sequence[Checked]) -> None:
    found = _diagnostics(checked)
    show_diagnostics(found, are_result=True)
    names = ", ".join(each.name or "" for each in checked)
    for ends in dict.fromkeys(str(each.end_ids) for each in checked if each.end_ids):
        print_line(f"end ids: {ends}")
    is_valid = all(each.severity != "error" for each in found)
    print_line(f"{names}: valid" if is_valid else f"{count_problems(found)} in {checked[0].file}")


def _diagnostics(checked: Iterable[Checked]) -> list[Diagnostic]:
    return list(dict.fromkeys(diagnostic for each in checked for diagnostic in each.diagnostics))


def _describe(checked: Sequence[Checked], **keys: Any) -> dict[str, Any]:
    found = _diagnostics(checked)
    problems = [diagnostic.as_dict() for diagnostic in found]
    is_valid = all(each.severity != "error" for each in found)
    return {"format_version": FORMAT_VERSION, **keys, "ok": is_valid, "problems": problems}


panel = "Build"
everyday = 1
command = check
