# SPDX-License-Identifier: Apache-2.0
"""`trtspec prune`, and the parts that `swift` shares with it: building a target alone, and writing a pruned one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trtspec.cli.options import Json, Recipe, Set

if TYPE_CHECKING:
    from trtspec.bench.layer_search import PrunedDraft
    from trtspec.methods.layer_pruning import Skip
    from trtspec.planning.pipeline import Build
    from trtspec.training.prune_vocabulary import PruningResult


@contextmanager
def build_target_only(recipe: Path, overrides: list[str]) -> Iterator[tuple[Build, Path]]:
    """Build a recipe's target without its draft; the artifact is removed when the block ends."""
    from dataclasses import replace
    from tempfile import TemporaryDirectory

    from trtspec.cli.progress import build_bars
    from trtspec.cli.render import show_diagnostics
    from trtspec.core.paths import cache_dir
    from trtspec.planning.pipeline import open_store, plan_build, prepare_sources, run_build
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
    from trtspec.bench.layer_search import draft_cost
    from trtspec.cli.progress import counter
    from trtspec.cli.render import note
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


def prune(
    recipe: Recipe,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Output directory of the draft.")],
    prompts: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Prompt file or set name (default: the recipe's prompts)."),
    ] = None,
    set_: Set = None,
    layers: Annotated[int, typer.Option(help="Layers to keep; 0 for the best number without training.", min=0)] = 0,
    vocab: Annotated[
        int, typer.Option(help="Instead: keep this many of the most frequent tokens in the recipe's draft net.", min=0)
    ] = 0,
    samples: Annotated[int, typer.Option("--num-prompts", help="Prompts for the search.", min=2)] = 32,
    max_tokens: Annotated[int, typer.Option(help="New tokens per prompt.", min=2)] = 64,
    iterations: Annotated[int, typer.Option(help="Maximum number of layer sets to try.", min=1)] = 300,
    minutes: Annotated[
        float, typer.Option("--max-minutes", help="Time limit of the search, in minutes.", min=0)
    ] = 10.0,
    seed: Annotated[int, typer.Option(help="Random seed of the search.")] = 0,
    json: Json = False,
) -> None:
    """Create a smaller draft by pruning layers or vocabulary.

    The layers to keep are searched on the target's responses, by the accepted length of greedy chains. The draft has
    the target's architecture, and `trtspec train` can train it. With --vocab, the LM head of the recipe's draft net
    keeps only the most frequent tokens of the target's responses, and both nets are measured on held-out prompts.

    Example: trtspec prune recipes/quickstart.yaml --layers 3 --out drafts/pruned
    """
    from trtspec.bench.layer_search import SearchBudget, search_layers
    from trtspec.checkpoints.writer import check_new
    from trtspec.cli.progress import counter
    from trtspec.cli.render import print_json
    from trtspec.core.errors import TrtspecError

    check_new(out)  # fail before minutes of search
    if vocab and layers:
        raise TrtspecError(
            "--vocab and --layers are mutually exclusive", hint="run them separately, with different --out"
        )
    if vocab:
        _show_reduced(_reduce(recipe, set_ or [], prompts, vocab, max_tokens, seed, out), as_json=json)
        return
    limits = SearchBudget(1.0, iterations, 60 * minutes, whole_layers=True, layers_left=layers)
    with build_target_only(recipe, set_ or []) as (build, root):
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

    from trtspec.cli.layout import pluralize
    from trtspec.cli.render import note

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


def _reduce(
    recipe: Path, overrides: list[str], prompts: Path | None, vocab: int, max_tokens: int, seed: int, out: Path
) -> PruningResult:
    from trtspec.cli.progress import build_bars
    from trtspec.core.errors import TrtspecError
    from trtspec.recipe.load import load_recipe
    from trtspec.training.plan import TrainRequest
    from trtspec.training.prune_vocabulary import prune_vocabulary
    from trtspec.training.settings import TrainSettings

    own = load_recipe(recipe, overrides).recipe.gates.prompts
    if prompts is None and own is None:
        raise TrtspecError("missing prompts to count tokens on", hint="add --prompts FILE")
    found = prompts or Path(own or "")
    settings = TrainSettings("kl", 0, 0.0, 0, 0.0, seed)  # no training
    asked = TrainRequest(recipe, overrides, found, None, None, out, max_tokens, 0, settings)
    return prune_vocabulary(asked, vocab, out, build_bars)


def _show_reduced(found: PruningResult, *, as_json: bool) -> None:
    from trtspec.cli.layout import pluralize
    from trtspec.cli.render import note, print_json, print_line

    if as_json:
        print_json(found.as_dict())
        return
    whole, (before, after) = found.verdict.whole, found.costs
    texts = pluralize(len(whole.before.texts), "held-out text")
    note(
        f"on {texts}: {whole.before.token_weighted} tokens per step before, {whole.after.token_weighted} now; a step"
        f" takes {before:.3f} and {after:.3f} times one of the target alone, estimated from the weights to read",
        "dim",
    )
    print_line(f"{found.out}: drafts {found.left} tokens", "green")


panel = "Drafts"
command = prune
