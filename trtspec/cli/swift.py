# SPDX-License-Identifier: Apache-2.0
"""`trtspec swift`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trtspec.cli.options import Json, Recipe, Set

if TYPE_CHECKING:
    from trtspec.bench.layer_search import SearchBudget, SkipSearchResult
    from trtspec.planning.pipeline import Build


def swift(
    recipe: Recipe,
    set_: Set = None,
    samples: Annotated[int, typer.Option("--num-prompts", help="Prompts for the search.", min=2)] = 16,
    max_tokens: Annotated[int, typer.Option(help="New tokens per prompt.", min=1)] = 64,
    max_skip: Annotated[float, typer.Option(help="Maximum share of sublayers to skip.", min=0, max=1)] = 0.75,
    iterations: Annotated[int, typer.Option(help="Maximum number of layer sets to try.", min=1)] = 300,
    minutes: Annotated[
        float, typer.Option("--max-minutes", help="Time limit of the search, in minutes.", min=0)
    ] = 10.0,
    seed: Annotated[int, typer.Option(help="Random seed of the search.")] = 0,
    layers: Annotated[bool, typer.Option("--layers", help="Skip only whole layers.")] = False,
    export: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write the remaining layers of the best set as a draft.")
    ] = None,
    json: Json = False,
) -> None:
    """Search which layers of a target to skip for self-speculation.

    Example: trtspec swift recipes/quickstart.yaml
    """
    from trtspec.bench.layer_search import SearchBudget
    from trtspec.cli.prune import write_pruned
    from trtspec.cli.render import print_json

    limits = SearchBudget(max_skip, iterations, 60 * minutes, layers)
    build, found = _search(recipe, set_ or [], samples, max_tokens, limits, seed)
    if export:
        write_pruned(build, found.best.skip, export)
    if json:
        print_json({**found.as_dict(), "name": build.recipe.name, "export": str(export) if export else None})
    else:
        _show(found)


def _search(
    recipe: Path, overrides: list[str], samples: int, max_tokens: int, limits: SearchBudget, seed: int
) -> tuple[Build, SkipSearchResult]:
    """Build the recipe's target without its draft, and search it."""
    from trtspec.bench.layer_search import search_artifact
    from trtspec.cli.progress import counter
    from trtspec.cli.prune import build_target_only

    with build_target_only(recipe, overrides) as (build, root), counter() as on_progress:
        found = search_artifact(
            root, samples=samples, max_tokens=max_tokens, limits=limits, seed=seed, on_progress=on_progress
        )
    return build, found


def _show(found: SkipSearchResult) -> None:
    import sys

    from trtspec.cli.layout import pluralize
    from trtspec.cli.render import note, show_table

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
command = swift
