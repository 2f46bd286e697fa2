# SPDX-License-Identifier: Apache-2.0
"""Arguments and options that several commands share."""

from __future__ import annotations

import os
from collections.abc import Sequence
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
ManifestDigest = Annotated[
    str | None,
    typer.Option(
        "--manifest", metavar="DIGEST", help="Refuse an artifact whose manifest has another digest (sha256:HEX)."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]
AllowCode = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-code",
        metavar="SHA256",
        help="Let a file of the artifact run that this trtspec did not emit; repeatable.",
        callback=lambda digests: allow_code(digests or ()),
    ),
]
Prompts = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="A file of prompts, or a set that `trtspec prompts --list` names, instead of the artifact's own.",
    ),
]
SkipGate = Annotated[
    list[str] | None,
    typer.Option("--skip-gate", metavar="NAME", help="Leave a gate of the recipe out, as min_speedup; repeatable."),
]
Undecided = Annotated[
    str | None,
    typer.Option(
        metavar="fail|pass",
        help="What an undecided gate does; by default fail in CI (CI=true), else pass with a warning.",
        show_default=False,
        callback=lambda policy: set_undecided(policy),  # noqa: PLW0108 - it is defined below
    ),
]
Baseline = Annotated[
    str | None,
    typer.Option(
        metavar="URL-or-NAME",
        help="A server without speculation, for an engine that drafts whatever is asked.",
        autocompletion=completing.deployments,
    ),
]


def allow_code(digests: Sequence[str]) -> None:
    """Allow code by its digests in this process and in those that it starts; TrtspecError for what is no digest."""
    from trtspec.backends.code_policy import ALLOW, allowed_digests

    if digests:
        os.environ[ALLOW] = ",".join([*digests, os.environ.get(ALLOW, "")])
        allowed_digests()


def set_undecided(policy: str | None) -> None:
    """Set the policy for undecided gates in this process and those that it starts; TrtspecError for an unknown one."""
    from trtspec.bench.verification_report import FAIL, PASS, POLICY
    from trtspec.core.errors import TrtspecError

    if policy is None:
        return
    if policy not in (FAIL, PASS):
        raise TrtspecError(f"--undecided {policy}: expected {FAIL} or {PASS}", hint=f"as --undecided {FAIL}")
    os.environ[POLICY] = policy
