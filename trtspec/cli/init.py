# SPDX-License-Identifier: Apache-2.0
"""`trtspec init`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trtspec.cli.options import Json

if TYPE_CHECKING:
    from trtspec.planning.init.write import Made

Checkpoint = typer.Argument(metavar="TARGET", help="The model to serve: a directory or a hub id.", show_default=False)
Drafting = typer.Argument(metavar="DRAFT", help="What drafts: a model, or a head of any kind.", show_default=False)


def init(
    target: Annotated[str, Checkpoint],
    draft: Annotated[str | None, Drafting] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="The recipe's file, instead of NAME.yaml.")] = None,
    name: Annotated[str | None, typer.Option("--name", help="The recipe's name, instead of the target's.")] = None,
    gpu: Annotated[str | None, typer.Option("--gpu", help="The GPU it will run on, instead of the one here.")] = None,
    method: Annotated[str | None, typer.Option("--method", help="How to draft, instead of what suits DRAFT.")] = None,
    backend: Annotated[str | None, typer.Option("--backend", help="What runs it, instead of what auto gives.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
    json: Json = False,
) -> None:
    """Write a recipe for a target and what drafts for it, with a reason for each line, and check it.

    Reads configs and headers, of hub models too: no weights are downloaded. Exits with 1 where the two do not fit.

    Example: trtspec init recipes/models/quickstart-target recipes/models/quickstart-draft -o /tmp/mine.yaml --force
    """
    from trtspec.cli.render import print_json
    from trtspec.planning.init.write import Wishes, make_recipe

    made = make_recipe(Wishes(target, draft, name, gpu, method, backend), out, force=force)
    if json:
        print_json(describe(made))
    else:
        show(made)
    raise typer.Exit(0 if made.is_fit else 1)


def describe(made: Made) -> dict[str, Any]:
    """Return the document of `init --json`."""
    from dataclasses import asdict

    return {
        "format_version": 1,
        "ok": made.is_fit,
        "path": str(made.path),
        "recipe": made.recipe,
        "choices": [asdict(choice) for choice in made.choices],
        "problems": [problem.as_dict() for problem in made.problems],
    }


def _shown(value: Any) -> str:
    """Return a value as the recipe writes it; a key that is left out has none."""
    import json

    return "-" if value is None else value if isinstance(value, str) else json.dumps(value)


def show(made: Made) -> None:
    """Show the choices, and what `check` says of them."""
    from trtspec.cli.render import say, show_diagnostics, show_table

    rows = [(each.path, _shown(each.value), each.why) for each in made.choices if each.why]
    show_table("", ("key", "value", "why"), rows)
    show_diagnostics(made.problems, are_result=True)
    if made.is_fit:
        say(f"{made.path}: written, and fits together; next: trtspec build {made.path}")
    else:
        say(f"{made.path}: written, but does not fit together: see above")


command = init
