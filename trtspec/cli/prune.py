# SPDX-License-Identifier: Apache-2.0
"""`trtspec prune`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trtspec.cli.options import Json, Recipe, Set

if TYPE_CHECKING:
    from trtspec.measure.layers import PrunedDraft


def prune(
    recipe: Recipe,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where the draft goes.")],
    prompts: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Prompts of your own traffic, or a set's name.  [default: the recipe's]"),
    ] = None,
    set_: Set = None,
    layers: Annotated[
        int, typer.Option(help="Layers that are left; 0 for as many as promise most untrained.", min=0)
    ] = 0,
    samples: Annotated[int, typer.Option(help="Prompts that the target answers for the search.", min=2)] = 32,
    max_tokens: Annotated[int, typer.Option(help="New tokens a prompt.", min=2)] = 64,
    iterations: Annotated[int, typer.Option(help="Sets that are tried at most.", min=1)] = 300,
    minutes: Annotated[float, typer.Option(help="Minutes that sets are tried for at most.", min=0)] = 10.0,
    seed: Annotated[int, typer.Option(help="Equal seeds try equal sets.")] = 0,
    json: Json = False,
) -> None:
    """Make a draft model out of layers of a recipe's target, for a target that has no small sibling.

    Which layers stay is searched on the target's own answers: those whose greedy chains are accepted furthest. The
    draft is of the target's form, and `trtspec train` adapts it.

    Example: trtspec prune recipes/quickstart.yaml --layers 3 --out drafts/pruned
    """
    from trtspec.checkpoint.write import check_new
    from trtspec.cli.progress import counter
    from trtspec.cli.pruned import built_alone, write_pruned
    from trtspec.cli.render import print_json
    from trtspec.measure.layers import search_layers
    from trtspec.measure.skips import SkipLimits

    check_new(out)  # before minutes of search
    limits = SkipLimits(1.0, iterations, 60 * minutes, whole_layers=True, layers_left=layers)
    with built_alone(recipe, set_ or []) as (build, root):
        with counter() as on_progress:
            found = search_layers(
                root, prompts, samples=samples, max_tokens=max_tokens, limits=limits, seed=seed,
                on_progress=on_progress,
            )  # fmt: skip
        write_pruned(build, found.skip, out)
    if json:
        print_json({**found.as_dict(), "name": build.recipe.name, "draft": str(out)})
    else:
        _show(found, out)


def _show(found: PrunedDraft, out: Path) -> None:
    import sys

    from trtspec.cli.layout import counted
    from trtspec.cli.render import note

    length = found.acceptance.token_weighted
    texts = counted(len(found.acceptance.texts), "text")
    note(
        f"{length} tokens a step at draft_len {found.draft_len} on {texts} that the search had not seen, expected"
        f" {found.speedup:.2f}x; {counted(found.tried, 'set')} tried in {found.seconds:.1f} s",
        "dim",
    )
    sys.stdout.write(
        f"speculation:\n  method: draft_target\n  draft_len: {found.draft_len}\n  draft:\n    model: {out.absolute()}\n"
    )


command = prune
