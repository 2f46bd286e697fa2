# SPDX-License-Identifier: Apache-2.0
"""Run `check` on the fixtures' recipe."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.conftest import Run

TARGET = (4, 10, "target.model")


DRAFT = (9, 12, "speculation.draft.model")


def rewrite(path: Path, **changes: Any) -> None:
    """Change keys of a JSON file; a value of None removes the key."""
    document = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in document.items() if value is not None}))


def replace(recipe: Path, old: str, new: str) -> None:
    text = recipe.read_text()
    assert old in text
    recipe.write_text(text.replace(old, new, 1))


def problems_of(trtspec: Run, recipe: Path, *arguments: str) -> list[dict[str, Any]]:
    """Return the diagnostics of `check`; `plan` and `build` must fail in the same way and leave no files."""
    checked = trtspec("check", recipe, *arguments, "--json")
    assert checked.code == 1
    assert checked.document["ok"] is False
    found: list[dict[str, Any]] = checked.document["problems"]
    for command in ("plan", "build"):
        refused = trtspec(command, recipe, *arguments, "--json")
        assert refused.code == 1
        assert refused.document["problems"] == found
    assert not (recipe.parent / "build").exists()
    return found


def the_problem(trtspec: Run, recipe: Path, place: tuple[int, int, str], *arguments: str) -> tuple[str, str | None]:
    """Return (message, hint) of the only error, with this directory removed from the message."""
    (problem,) = (each for each in problems_of(trtspec, recipe, *arguments) if each["severity"] == "error")
    assert (problem["line"], problem["column"], problem["path"]) == place
    assert problem["file"] == str(recipe)
    return problem["message"].replace(f"{recipe.parent}/", ""), problem["hint"]
