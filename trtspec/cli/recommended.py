# SPDX-License-Identifier: Apache-2.0
"""Options of `profile` and `tune`, and output of their recommendation."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from trtspec.bench.profile.recommend import Recommendation

Samples = Annotated[int, typer.Option("--num-prompts", help="Maximum number of prompts, sampled with --seed.", min=1)]
MaxTokens = Annotated[int, typer.Option(help="New tokens per prompt.", min=2)]
MaxDraftLen = Annotated[int, typer.Option(help="Maximum draft length to try.", min=1, max=64)]
Concurrency = Annotated[int, typer.Option(help="Concurrency to optimize for.", min=1)]
Seed = Annotated[int, typer.Option(help="Random seed for sampling prompts.")]
Write = Annotated[bool, typer.Option("--write", help="Write the recommendation into the recipe.")]


def show_verdict(found: Recommendation) -> None:
    """Print the verdict on the recommended speculation."""
    from trtspec.bench.verdict import derive_verdict
    from trtspec.cli.render import print_line

    verdict = derive_verdict(found.proposal)
    print_line(verdict.text, verdict.style)


def show_recommendation(found: Recommendation, switches_off: str = "") -> None:
    """Print the reason and the recipe section; `switches_off` is the recipe's current method or ""."""
    import sys

    import yaml

    from trtspec.cli.render import print_line

    print_line(found.why)
    if found.candidate is None and switches_off:
        print_line(f"--write would disable {switches_off}", "yellow")
    sys.stdout.write(yaml.safe_dump({"speculation": found.speculation}, sort_keys=False, default_flow_style=None))


def write_recommendation(recipe: Path, found: Recommendation, was: str = "") -> None:
    """Write the recommended section into the recipe; `was` is the recipe's previous method or ""."""
    from trtspec.cli.render import note
    from trtspec.recipe.yaml_edit import write_section

    written = write_section(recipe, "speculation", found.speculation)
    if written and found.candidate is None:
        note(f"{recipe}: speculation disabled{f' (was {was})' if was else ''}: {found.why}", "yellow")
        return
    note(f"{recipe}: {'speculation updated' if written else 'unchanged'}", "green")
