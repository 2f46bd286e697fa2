# SPDX-License-Identifier: Apache-2.0
"""Helpers of `prune` and `swift`: build a target without its draft, and write a pruned checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trtspec.methods.layer_skips import Skip
    from trtspec.planning.pipeline import Build


@contextmanager
def build_target_only(recipe: Path, overrides: list[str]) -> Iterator[tuple[Build, Path]]:
    """Build a recipe's target without its draft; the artifact is removed when the block ends."""
    from dataclasses import replace
    from tempfile import TemporaryDirectory

    from trtspec.cli.progress import build_bars
    from trtspec.cli.render import show_diagnostics
    from trtspec.core.paths import cache_dir
    from trtspec.planning.pipeline import open_store, plan_build, run_build
    from trtspec.planning.prebuild import prepare_sources
    from trtspec.recipe.load import load_recipe
    from trtspec.recipe.schema import Speculation

    loaded = load_recipe(recipe, overrides)
    loaded = replace(loaded, recipe=loaded.recipe.model_copy(update={"speculation": Speculation()}))
    cache_dir().mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(
        prefix="alone-", dir=cache_dir()
    ) as folder:  # on the same file system as the store, for hard links
        with build_bars() as bars:
            prepare_sources(loaded, bars.preparing)
            build = plan_build(loaded, on_read=bars.reading)
            show_diagnostics(build.diagnostics)
            root = run_build(build, Path(folder) / "artifact", open_store(), bars).artifact
        yield build, root


def write_pruned(build: Build, skip: Skip, out: Path) -> None:
    """Write the target of a build without the skipped layers as a checkpoint, and show its size."""
    from trtspec.bench.layer_search.search import draft_cost
    from trtspec.cli.progress import counter
    from trtspec.cli.render import note
    from trtspec.methods.layer_pruning import prune_checkpoint
    from trtspec.methods.layer_skips import Skip

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
