# SPDX-License-Identifier: Apache-2.0
"""Arguments and options shared by several commands."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from trtspec.cli import completing

_RECIPE = "Recipe file, name of a shipped recipe, or - for standard input."
_RECIPE_ARGUMENT = typer.Argument(metavar="RECIPE", help=_RECIPE, show_default=False, autocompletion=completing.recipes)
Recipe = Annotated[Path, _RECIPE_ARGUMENT]
Recipes = Annotated[list[Path], _RECIPE_ARGUMENT]
Artifact = Annotated[
    Path, typer.Argument(metavar="ARTIFACT", help="Artifact directory written by `trtspec build`.", show_default=False)
]
Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="Deployment name.",
        show_default=False,
        autocompletion=completing.deployments,
    ),
]
AnyName = Annotated[
    str | None,
    typer.Argument(
        metavar="NAME",
        help="Deployment name.",
        show_default=False,
        autocompletion=completing.deployments,
    ),
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Override a recipe value, e.g. speculation.draft_len=3.",
        autocompletion=completing.overrides,
    ),
]
Cell = Annotated[
    list[str] | None,
    typer.Option("--variant", metavar="NAME", help="Matrix cell to use: a name or a pattern such as '*-draft_len-3*'."),
]
ManifestDigest = Annotated[
    str | None,
    typer.Option("--manifest", metavar="DIGEST", help="Require this digest of the manifest (sha256:HEX)."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON to stdout.")]
AllowCode = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-code",
        metavar="SHA256",
        help="Allow artifact code of this digest that trtspec did not generate; repeatable.",
        callback=lambda digests: allow_code(digests or ()),
    ),
]
Prompts = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Prompt file, or a set listed by `trtspec prompts --list` (default: the artifact's).",
    ),
]
SkipGate = Annotated[
    list[str] | None,
    typer.Option("--skip-gate", metavar="NAME", help="Skip a gate of the recipe, e.g. min_speedup; repeatable."),
]
Undecided = Annotated[
    str | None,
    typer.Option(
        metavar="fail|pass",
        help="Treat undecided gates as failed or passed (default: fail if CI=true).",
        show_default=False,
        callback=lambda policy: set_undecided(policy),  # noqa: PLW0108 - defined below
    ),
]
Baseline = Annotated[
    str | None,
    typer.Option(
        metavar="URL-or-NAME",
        help="Server without speculation, if the engine cannot disable it.",
        autocompletion=completing.deployments,
    ),
]


def allow_code(digests: Sequence[str]) -> None:
    """Allow code with these digests in this process and its children; TrtspecError for an invalid digest."""
    from trtspec.backends.code_policy import ALLOW, allowed_digests

    if digests:
        os.environ[ALLOW] = ",".join([*digests, os.environ.get(ALLOW, "")])
        allowed_digests()


def set_undecided(policy: str | None) -> None:
    """Set the policy for undecided gates in this process and its children; TrtspecError for an unknown policy."""
    from trtspec.bench.verification_report import FAIL, PASS, POLICY
    from trtspec.core.errors import TrtspecError

    if policy is None:
        return
    if policy not in (FAIL, PASS):
        raise TrtspecError(f"--undecided {policy}: expected {FAIL} or {PASS}", hint=f"e.g. --undecided {FAIL}")
    os.environ[POLICY] = policy
