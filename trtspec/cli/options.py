# SPDX-License-Identifier: Apache-2.0
"""Arguments and options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trtspec.cli import completing

_RECIPE = "A recipe file, - for standard input, or the name of a recipe that comes with trtspec."
_RECIPE_ARGUMENT = typer.Argument(metavar="RECIPE", help=_RECIPE, show_default=False, autocompletion=completing.recipes)
Recipe = Annotated[Path, _RECIPE_ARGUMENT]
Recipes = Annotated[list[Path], _RECIPE_ARGUMENT]
Artifact = Annotated[
    Path, typer.Argument(metavar="ARTIFACT", help="A directory that `trtspec build` made.", show_default=False)
]
Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="The deployment's name: the recipe's, or what deploy --name said.",
        show_default=False,
        autocompletion=completing.deployments,
    ),
]
AnyName = Annotated[
    str | None,
    typer.Argument(
        metavar="NAME",
        help="The deployment's name: the recipe's, or what deploy --name said.",
        show_default=False,
        autocompletion=completing.deployments,
    ),
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Override a value, as speculation.draft_len=3.",
        autocompletion=completing.overrides,
    ),
]
Cell = Annotated[
    list[str] | None,
    typer.Option(
        "--cell", metavar="NAME", help="Only this cell of a matrix, by its name or a pattern as '*-draft_len-3*'."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]
SkipGate = Annotated[
    list[str] | None,
    typer.Option("--skip-gate", metavar="NAME", help="Leave a gate of the recipe out, as min_speedup; repeatable."),
]
Baseline = Annotated[
    str | None,
    typer.Option(
        metavar="URL-or-NAME",
        help="A server without speculation, for an engine that drafts whatever is asked.",
        autocompletion=completing.deployments,
    ),
]
