# SPDX-License-Identifier: Apache-2.0
"""Arguments and options shared by several commands, and parsing of sizes and durations."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from trtspec.cli import completing
from trtspec.core.errors import TrtspecError

PREFIXES = " KMGT"
SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def parse_bytes(text: str, option: str) -> int:
    """Parse a size such as 200GB or 1.5TiB to bytes; raise a TrtspecError about `option` if it is invalid."""
    if match := re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?([KMGT]?)(i?)B?", text.strip(), re.IGNORECASE):
        number, prefix, binary = match.groups()
        return int(float(number) * (1024 if binary else 1000) ** (PREFIXES.index(prefix.upper() or " ")))
    raise TrtspecError(f"{option}: {text!r} is not a size", hint="e.g. 200GB or 500GiB")


def parse_seconds(text: str, option: str) -> float:
    """Parse a duration such as 30d or 12h to seconds; raise a TrtspecError about `option` if it is invalid."""
    if match := re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?([smhdw])", text.strip()):
        return float(match[1]) * SECONDS[match[2]]
    raise TrtspecError(f"{option}: {text!r} is not a duration", hint="e.g. 30d, 12h or 2w")


_RECIPE = "Recipe file, name of a shipped recipe, or - for standard input."
_RECIPE_ARGUMENT = typer.Argument(metavar="RECIPE", help=_RECIPE, show_default=False, autocompletion=completing.recipes)
Recipe = Annotated[Path, _RECIPE_ARGUMENT]
Recipes = Annotated[list[Path], _RECIPE_ARGUMENT]
Artifact = Annotated[
    Path, typer.Argument(metavar="ARTIFACT", help="Artifact directory written by `trtspec build`.", show_default=False)
]
Location = Annotated[
    str,
    typer.Argument(
        metavar="LOCATION",
        help="oci://HOST/NAME:TAG, s3://BUCKET/PREFIX:TAG, hf:OWNER/NAME:BRANCH or file:PATH:TAG.",
        show_default=False,
    ),
]
ArtifactOrLocation = Annotated[
    str,
    typer.Argument(
        metavar="ARTIFACT", help="Artifact directory or location, such as oci://HOST/NAME:TAG.", show_default=False
    ),
]
_NAME_ARGUMENT = typer.Argument(
    metavar="NAME", help="Deployment name.", show_default=False, autocompletion=completing.deployments
)
Name = Annotated[str, _NAME_ARGUMENT]
AnyName = Annotated[str | None, _NAME_ARGUMENT]
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
On = Annotated[
    str | None,
    typer.Option(
        metavar="POOL",
        help="Where steps run: local:N (worker processes), ray (a local cluster), ray://HOST:PORT or ray:HOST:PORT.",
    ),
]
ManifestDigest = Annotated[
    str | None,
    typer.Option("--manifest", metavar="DIGEST", help="Require this digest of the manifest (sha256:HEX)."),
]
SignaturePolicy = Annotated[
    Path | None,
    typer.Option(
        "--signature",
        metavar="POLICY",
        help="Require a signature that this policy accepts (default: TRTSPEC_SIGNATURE_POLICY).",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON to stdout.")]
AllowCode = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-code",
        metavar="SHA256",
        help="Allow artifact code of this digest that trtspec did not generate; repeatable.",
        callback=lambda digests: allow_code(digests),  # noqa: PLW0108 - defined below
    ),
]
Prompts = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Prompt file, or a set listed by `trtspec datasets --list` (default: the artifact's).",
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


def is_artifact(what: str) -> bool:
    """Return whether an argument is a path; otherwise it is a URL or the name of a deployment."""
    return "://" not in what and (Path(what).exists() or "/" in what)


def allow_code(digests: Sequence[str] | None) -> list[str] | None:
    """Allow code with these digests in this process and its children, and return them.

    Raises TrtspecError for an invalid digest.
    """
    from trtspec.backends.code_policy import ALLOW, allowed_digests

    if digests:
        os.environ[ALLOW] = ",".join([*digests, os.environ.get(ALLOW, "")])
        allowed_digests()
    return list(digests) if digests else None


def set_undecided(policy: str | None) -> str | None:
    """Set the policy for undecided gates in this process and its children, and return it.

    Raises TrtspecError if it is unknown.
    """
    from trtspec.bench.gates import FAIL, PASS, POLICY

    if policy is None:
        return None
    if policy not in (FAIL, PASS):
        raise TrtspecError(f"--undecided {policy}: expected {FAIL} or {PASS}", hint=f"e.g. --undecided {FAIL}")
    os.environ[POLICY] = policy
    return policy
