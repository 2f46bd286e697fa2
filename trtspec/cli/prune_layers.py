# SPDX-License-Identifier: Apache-2.0
"""`trtspec prune-layers`, and what `search-skips` shares with it: options, building a target, writing a pruned one."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trtspec.cli.layout import pluralize
from trtspec.cli.options import Json, Recipe, Set
from trtspec.cli.progress import build_bars, counter
from trtspec.cli.render import note, print_json, show_diagnostics
from trtspec.core.paths import cache_dir

if TYPE_CHECKING:
    from trtspec.bench.layer_search import PrunedDraft
    from trtspec.methods.layer_pruning import Skip
    from trtspec.planning.pipeline import Build

MaxTokens = Annotated[int, typer.Option(help="New tokens per prompt.", min=2)]
NumPrompts = Annotated[int, typer.Option(help="Prompts for the search.", min=2)]
Iterations = Annotated[int, typer.Option(help="Maximum number of layer sets to try.", min=1)]
MaxMinutes = Annotated[float, typer.Option(help="Time limit of the search, in minutes.", min=0)]
Seed = Annotated[int, typer.Option(help="Random seed of the search.")]


@contextmanager
def build_target_only(recipe: Path, overrides: list[str]) -> Iterator[tuple[Build, Path]]:
    """Build a recipe's target without its draft; the artifact is removed when the block ends."""
    from tempfile import TemporaryDirectory

    from trtspec.planning.pipeline import open_store, plan_build, prepare_sources, run_build
    from trtspec.recipe.load import load_recipe
    from trtspec.recipe.schema import Speculation

    loaded = load_recipe(recipe, overrides)
    loaded = replace(loaded, recipe=loaded.recipe.model_copy(update={"speculation": Speculation()}))
    cache_dir().mkdir(parents=True, exist_ok=True)
    # The directory is on the same file system as the store, for hard links.
    with TemporaryDirectory(prefix="alone-", dir=cache_dir()) as folder:
        with build_bars() as bars:
            prepare_sources(loaded, bars.preparing)
            build = plan_build(loaded, read_all=True, on_read=bars.reading)
            show_diagnostics(build.diagnostics)
            root = run_build(build, Path(folder) / "artifact", open_store(), bars).artifact
        yield build, root


def write_pruned(build: Build, skip: Skip, out: Path) -> None:
    """Write the target of a build without the skipped layers as a checkpoint, and show its size."""
    from trtspec.bench.layer_search import draft_cost
    from trtspec.methods.layer_pruning import Skip, prune_checkpoint

    model = build.context.target
    if model is None:
        raise ValueError("the build lacks a target")
    done = 0
    with counter() as on_progress:

        def on_bytes(count: int) -> None:
            nonlocal done
            done += count
            on_progress("export", done, model.source.nbytes)

        prune_checkpoint(model, skip, out, on_bytes)
    cost = draft_cost(Skip(attention=skip.layers, mlp=skip.layers), model.config)
    kept, of = model.config.num_layers - len(skip.layers), model.config.num_layers
    note(f"{out}: {kept} of {of} layers, {cost:.0%} of the weights, for speculation.draft.model of draft_target")


def prune_layers(
    recipe: Recipe,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Output directory of the draft.")],
    prompts: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Prompt file or set name (default: the recipe's prompts)."),
    ] = None,
    set_: Set = None,
    layers: Annotated[int, typer.Option(help="Layers to keep; 0 for the best number without training.", min=0)] = 0,
    num_prompts: NumPrompts = 32,
    max_tokens: MaxTokens = 64,
    iterations: Iterations = 300,
    max_minutes: MaxMinutes = 10.0,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Create a draft from some of a target's layers.

    The layers to keep are searched on the target's responses, by the accepted length of greedy chains. The draft has
    the target's architecture, and `trtspec train` can train it.

    Example: trtspec prune-layers recipes/quickstart.yaml --layers 3 --out drafts/pruned
    """
    from trtspec.bench.layer_search import SearchBudget, search_layers
    from trtspec.checkpoints.writer import check_new

    check_new(out)  # fail before minutes of search
    limits = SearchBudget(1.0, iterations, 60 * max_minutes, whole_layers=True, layers_left=layers)
    with build_target_only(recipe, set_ or []) as (build, root):
        with counter() as on_progress:
            found = search_layers(
                root, prompts, samples=num_prompts, max_tokens=max_tokens, limits=limits, seed=seed,
                on_progress=on_progress,
            )  # fmt: skip
        write_pruned(build, found.skip, out)
    if json:
        print_json({**found.as_dict(), "name": build.recipe.name, "draft": str(out)})
    else:
        _show(found, out)


def _show(found: PrunedDraft, out: Path) -> None:
    length = found.acceptance.token_weighted
    texts = pluralize(len(found.acceptance.texts), "text")
    note(
        f"{length} tokens per step at draft_len {found.draft_len} on {texts} held out from the search, expected"
        f" {found.speedup:.2f}x; {pluralize(found.tried, 'set')} tried in {found.seconds:.1f} s",
        "dim",
    )
    sys.stdout.write(
        f"speculation:\n  method: draft_target\n  draft_len: {found.draft_len}\n  draft:\n    model: {out.absolute()}\n"
    )


panel = "Drafts"
command = prune_layers
