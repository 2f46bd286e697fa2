# SPDX-License-Identifier: Apache-2.0
"""`trtspec search-skips`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trtspec.cli.layout import pluralize
from trtspec.cli.options import Json, Recipe, Set
from trtspec.cli.progress import counter
from trtspec.cli.prune_layers import Iterations, MaxMinutes, NumPrompts, Seed, build_target_only, write_pruned
from trtspec.cli.render import note, print_json, show_table

if TYPE_CHECKING:
    from trtspec.bench.layer_search import SkipSearchResult


def search_skips(
    recipe: Recipe,
    set_: Set = None,
    num_prompts: NumPrompts = 16,
    max_tokens: Annotated[int, typer.Option(help="New tokens per prompt.", min=1)] = 64,
    max_skip: Annotated[float, typer.Option(help="Maximum share of sublayers to skip.", min=0, max=1)] = 0.75,
    iterations: Iterations = 300,
    max_minutes: MaxMinutes = 10.0,
    seed: Seed = 0,
    layers: Annotated[bool, typer.Option("--layers", help="Skip only whole layers.")] = False,
    export: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write the remaining layers of the best set as a draft.")
    ] = None,
    json: Json = False,
) -> None:
    """Search which layers of a target to skip for self-speculation.

    The result is the recipe section of the method swift.

    Example: trtspec search-skips recipes/quickstart.yaml
    """
    from trtspec.bench.layer_search import SearchBudget, search_artifact

    limits = SearchBudget(max_skip, iterations, 60 * max_minutes, layers)
    with build_target_only(recipe, set_ or []) as (build, root), counter() as on_progress:
        found = search_artifact(
            root, samples=num_prompts, max_tokens=max_tokens, limits=limits, seed=seed, on_progress=on_progress
        )
    if export:
        write_pruned(build, found.best.skip, export)
    if json:
        print_json({**found.as_dict(), "name": build.recipe.name, "export": str(export) if export else None})
    else:
        _show(found)


def _show(found: SkipSearchResult) -> None:
    rows = [
        (
            ", ".join(
                f"{kind} {' '.join(map(str, layers))}" for kind, layers in each.skip.model_dump().items() if layers
            ),
            f"{each.matchness:.3f}",
            f"{each.cost:.0%}",
            str(each.draft_len),
            f"{each.speedup:.2f}x",
        )
        for each in found.candidates
    ]
    columns = ("skipped", "matchness", "weights read", "draft_len", "expected")
    show_table("", columns, rows, right=(1, 2, 3, 4), is_result=False)  # the result is the recipe section below
    note(
        f"{pluralize(found.tried, 'set')} tried in {found.seconds:.1f} s; matchness at {found.places} positions of"
        " held-out text; expected speed-up estimated from the weights to read",
        "dim",
    )
    if found.best.speedup <= 1:
        note("no set is expected to be faster than the target alone", "yellow")
    skip = found.best.skip
    sys.stdout.write(
        "speculation:\n  method: swift\n"
        f"  draft_len: {found.best.draft_len}\n  options:\n    skip:\n"
        f"      attention: {skip.attention}\n      mlp: {skip.mlp}\n"
    )


panel = "Drafts"
command = search_skips
