# SPDX-License-Identifier: Apache-2.0
"""`trtspec init`: write a recipe for a target and an optional draft."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trtspec.cli.options import Json
from trtspec.cli.render import print_line, print_result, show_diagnostics, show_table

if TYPE_CHECKING:
    from trtspec.planning.init.write import InitResult

Checkpoint = typer.Argument(metavar="TARGET", help="Model to serve: a directory or hub id.", show_default=False)
Drafting = typer.Argument(metavar="DRAFT", help="Draft model or head: a directory or hub id.", show_default=False)


def init(
    target: Annotated[str, Checkpoint],
    draft: Annotated[str | None, Drafting] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Recipe file to write (default: NAME.yaml).")] = None,
    name: Annotated[str | None, typer.Option("--name", help="Recipe name (default: the target's name).")] = None,
    gpu: Annotated[
        str | None, typer.Option("--gpu", help="GPU to serve on (default: the one of this machine).")
    ] = None,
    method: Annotated[
        str | None, typer.Option("--method", help="Drafting method (default: the one for DRAFT).")
    ] = None,
    backend: Annotated[str | None, typer.Option("--backend", help="Inference backend (default: auto).")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
    json: Json = False,
) -> None:
    """Write a recipe for a target and an optional draft.

    Each line has a reason, and the recipe is checked. Only configs and headers are read, also of hub models; no weights
    are downloaded. Exits with 1 if target and draft are incompatible.

    Example: trtspec init recipes/models/quickstart-target recipes/models/quickstart-draft -o /tmp/mine.yaml --force
    """
    from trtspec.planning.init.write import make_recipe

    made = make_recipe(target, draft, out=out, name=name, gpu=gpu, method=method, backend=backend, force=force)
    print_result(describe(made), lambda: show(made), as_json=json)
    raise typer.Exit(0 if made.is_fit else 1)


def describe(made: InitResult) -> dict[str, Any]:
    """Return the JSON document of `trtspec init --json`."""
    from trtspec.planning.init.recipe_text import build_document

    return {
        "format_version": 1,
        "ok": made.is_fit,
        "path": str(made.path),
        "recipe": build_document(made.choices),
        "choices": [asdict(choice) for choice in made.choices],
        "problems": [problem.as_dict() for problem in made.problems],
    }


def _format_value(value: Any) -> str:
    """Return a value as written in the recipe, or - for an omitted key."""
    import json

    return "-" if value is None else value if isinstance(value, str) else json.dumps(value)


def show(made: InitResult) -> None:
    rows = [(each.path, _format_value(each.value), each.why) for each in made.choices if each.why]
    show_table("", ("key", "value", "why"), rows)
    show_diagnostics(made.problems, are_result=True)
    if made.is_fit:
        print_line(f"{made.path}: written and valid; next: trtspec build {made.path}")
    else:
        print_line(f"{made.path}: written, but invalid; see the errors above")


panel = "Build"
command = init
