# SPDX-License-Identifier: Apache-2.0
"""Implementation of `trtspec init`: propose a recipe, write it and its JSON Schema, and check the written file."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path

from trtspec.checkpoints.previews import with_model_ids
from trtspec.core.diagnostics import Diagnostic
from trtspec.core.errors import CheckpointError, TrtspecError
from trtspec.core.files import replace_file
from trtspec.planning.check.recipe import check_recipe
from trtspec.planning.completion import editor_schema
from trtspec.planning.init.inputs import machine_for, open_checkpoint, propose_methods
from trtspec.planning.init.propose import propose
from trtspec.planning.init.recipe_text import SCHEMA_FILE, RecipeChoice, relative_to, render
from trtspec.recipe.load import load_recipe
from trtspec.recipe.schema import NAME, PATTERN_DESCRIPTIONS


@dataclass(frozen=True)
class InitResult:
    """A written recipe: its path, its settings, and the diagnostics of `check`."""

    path: Path
    choices: list[RecipeChoice]
    problems: list[Diagnostic]

    @property
    def is_fit(self) -> bool:
        """Return True if the recipe can be built."""
        return not any(problem.severity == "error" for problem in self.problems)


def make_recipe(
    target: str,
    draft: str | None = None,
    *,
    out: Path | None = None,
    name: str | None = None,
    gpu: str | None = None,
    method: str | None = None,
    backend: str | None = None,
    force: bool = False,
) -> InitResult:
    """Write a proposed recipe to `out` (default: NAME.yaml in the current directory) and check it.

    Arguments that are None are chosen automatically. An existing file is replaced only with `force`. Raises
    TrtspecError for inputs that cannot be read, named or written; other incompatibilities are in the result's
    diagnostics.
    """
    named = _name(name, target)
    path = out or Path(f"{named.value}.yaml")
    if path.exists() and not force:
        hint = "choose another file with --out, or replace it with --force"
        raise TrtspecError("the file exists", where=str(path), hint=hint)
    machine = machine_for(gpu)
    try:
        served, drafter = open_checkpoint(target), open_checkpoint(draft) if draft else None
        found = propose_methods(method, backend, served.source, drafter.source if drafter else None, machine.gpu)
        choices = relative_to(propose(named, served, drafter, machine, found), Path(os.path.abspath(path)).parent)
        _write(path, render(choices))
        return InitResult(path, choices, check_recipe(load_recipe(path)).diagnostics)
    except CheckpointError as error:  # show hub ids instead of paths in the hub cache
        where = with_model_ids(error.where) if error.where else None
        raise CheckpointError(with_model_ids(error.message), where=where, hint=error.hint) from error


def _name(given: str | None, target: str) -> RecipeChoice:
    """Return the setting of the recipe's name: the given name, or one derived from the target."""
    if given is not None:
        if not re.fullmatch(NAME, given):
            raise TrtspecError(f"{given!r} is not {PATTERN_DESCRIPTIONS[NAME]}", where="--name")
        return RecipeChoice("name", given, "set by --name")
    last = re.split("[/\\\\]", os.path.abspath(target))[-1].lower()
    derived = re.sub(r"^[^a-z0-9]+|[^a-z0-9._-]+", "-", last).strip("-._")[:63] or "model"
    return RecipeChoice("name", derived, "from the target's name")


def _write(path: Path, text: str) -> None:
    """Write the recipe and, if it is missing or outdated, the JSON Schema for editors next to it."""
    schema, beside = json.dumps(editor_schema(), indent=2, ensure_ascii=False) + "\n", path.with_name(SCHEMA_FILE)
    try:
        replace_file(path, text.encode())
        if not beside.is_file() or beside.read_text(encoding="utf-8") != schema:
            replace_file(beside, schema.encode())
    except (OSError, UnicodeDecodeError) as error:
        what = error.strerror if isinstance(error, OSError) else f"{SCHEMA_FILE} there is not a schema"
        raise TrtspecError(f"cannot be written: {what}", where=str(path), hint="choose another file with -o") from None
