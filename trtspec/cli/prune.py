# SPDX-License-Identifier: Apache-2.0
"""`trtspec prune`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trtspec.cli.options import Json, Recipe, Set

if TYPE_CHECKING:
    from trtspec.bench.layer_search.layers import PrunedDraft
    from trtspec.training.vocab_pruning.reduce import PruningResult


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
    from trtspec.bench.layer_search.layers import search_layers
    from trtspec.bench.layer_search.search import SearchBudget
    from trtspec.checkpoints.writer import check_new
    from trtspec.cli.progress import counter
    from trtspec.cli.pruned import build_target_only, write_pruned
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
    from trtspec.training.settings import TrainSettings
    from trtspec.training.vocab_pruning.reduce import prune_vocabulary

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
