# SPDX-License-Identifier: Apache-2.0
"""What measuring recommends, shown as a recipe's section and written into it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from trtspec.bench.profile.recommend import Recommendation

Samples = Annotated[int, typer.Option(help="Prompts at most, drawn by --seed.", min=1)]
MaxTokens = Annotated[int, typer.Option(help="New tokens a prompt.", min=2)]
MaxDraftLen = Annotated[int, typer.Option(help="The longest draft that is tried.", min=1, max=64)]
Concurrency = Annotated[int, typer.Option(help="Requests at once that the recommendation is for.", min=1)]
Seed = Annotated[int, typer.Option(help="Equal seeds draw equal prompts.")]
Write = Annotated[bool, typer.Option("--write", help="Put what is recommended into the recipe.")]


def show_verdict(found: Recommendation) -> None:
    """Print the verdict, which comes before everything else."""
    from trtspec.bench.verdict import verdict_of
    from trtspec.cli.render import say

    verdict = verdict_of(found.proposal)
    say(verdict.text, verdict.style)


def show_recommendation(found: Recommendation, switches_off: str = "") -> None:
    """Print why, and the section of a recipe; `switches_off` is what the recipe drafts with, where it drafts."""
    import sys

    import yaml

    from trtspec.cli.render import say

    say(found.why)
    if found.candidate is None and switches_off:
        say(f"--write would switch {switches_off} off", "yellow")
    sys.stdout.write(yaml.safe_dump({"speculation": found.speculation}, sort_keys=False, default_flow_style=None))


def write_recommendation(recipe: Path, found: Recommendation, was: str = "") -> None:
    """Put the section into the recipe, and say so; `was` is what the recipe drafted with, "" for nothing."""
    from trtspec.cli.render import note
    from trtspec.recipe.yaml_edit import write_section

    written = write_section(recipe, "speculation", found.speculation)
    if written and found.candidate is None:
        note(f"{recipe}: speculation was switched off{f', which was {was}' if was else ''}: {found.why}", "yellow")
        return
    note(f"{recipe}: {'speculation was changed' if written else 'says so already'}", "green")
