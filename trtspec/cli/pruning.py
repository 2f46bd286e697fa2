# SPDX-License-Identifier: Apache-2.0
"""`trtspec prune-layers`, `prune-vocab` and `search-skips`: drafts from parts of a target or of a draft."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import trtspec
from trtspec.cli.layout import pluralize
from trtspec.cli.options import Json, Recipe, Set
from trtspec.cli.progress import build_bars, counter
from trtspec.cli.render import note, print_line, print_result, show_diagnostics, show_table
from trtspec.core.errors import TrtspecError
from trtspec.core.paths import cache_dir

if TYPE_CHECKING:
    from trtspec.bench.layer_search import PrunedDraft, SkipSearchResult
    from trtspec.methods.layer_pruning import Skip
    from trtspec.planning.pipeline import Build
    from trtspec.training.prune_vocabulary import PruningResult

Out = Annotated[Path, typer.Option(metavar="DIR", help="Output directory of the draft.")]
Prompts = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Prompt file or set name (default: the recipe's prompts).")
]
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
    out: Out,
    prompts: Prompts = None,
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
    document = {**found.as_dict(), "name": build.recipe.name, "draft": str(out)}
    print_result(document, lambda: _show_pruned(found, out), as_json=json)


def _show_pruned(found: PrunedDraft, out: Path) -> None:
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


def prune_vocab(
    recipe: Recipe,
    vocab: Annotated[int, typer.Option(help="Number of most frequent tokens to keep.", min=1)],
    out: Out,
    prompts: Prompts = None,
    set_: Set = None,
    max_tokens: MaxTokens = 64,
    seed: Annotated[int, typer.Option(help="Random seed for holding out prompts.")] = 0,
    json: Json = False,
) -> None:
    """Restrict a draft net to the most frequent tokens.

    The LM head of the recipe's draft net keeps only the most frequent tokens of the target's responses, and both nets
    are measured on held-out prompts.

    Example: trtspec prune-vocab recipes/quickstart-eagle3.yaml --vocab 128 --prompts kinds --out drafts/fewer
    """
    from trtspec.checkpoints.writer import check_new
    from trtspec.training.plan import TrainRequest
    from trtspec.training.prune_vocabulary import prune_vocabulary
    from trtspec.training.texts import TrainSettings

    check_new(out)  # fail before minutes of generation
    own = trtspec.load_recipe(recipe, overrides=set_ or []).recipe.gates.prompts
    if prompts is None and own is None:
        raise TrtspecError("missing prompts to count tokens on", hint="add --prompts FILE")
    settings = TrainSettings("kl", 0, 0.0, 0, 0.0, seed)  # no training
    asked = TrainRequest(recipe, set_ or [], prompts or Path(own or ""), None, None, out, max_tokens, 0, settings)
    found = prune_vocabulary(asked, vocab, out, build_bars)
    print_result(found.as_dict(), lambda: _show_vocab(found), as_json=json)


def _show_vocab(found: PruningResult) -> None:
    whole, (before, after) = found.comparison.whole, found.costs
    texts = pluralize(len(whole.before.texts), "held-out text")
    note(
        f"on {texts}: {whole.before.token_weighted} tokens per step before, {whole.after.token_weighted} now; a step"
        f" takes {before:.3f} and {after:.3f} times one of the target alone, estimated from the weights to read",
        "dim",
    )
    print_line(f"{found.out}: drafts {found.left} tokens", "green")


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
    document = {**found.as_dict(), "name": build.recipe.name, "export": str(export) if export else None}
    print_result(document, lambda: _show_skips(found), as_json=json)


def _show_skips(found: SkipSearchResult) -> None:
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
commands = (prune_layers, prune_vocab, search_skips)
