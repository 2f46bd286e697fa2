# SPDX-License-Identifier: Apache-2.0
"""Arguments and options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trtspec.cli import completing

Recipe = Annotated[
    Path, typer.Argument(metavar="RECIPE", help="A recipe file.", show_default=False, autocompletion=completing.recipes)
]
Artifact = Annotated[
    Path, typer.Argument(metavar="ARTIFACT", help="A directory that `trtspec build` made.", show_default=False)
]
Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME", help="The recipe's name.", show_default=False, autocompletion=completing.deployments
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
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]
