# SPDX-License-Identifier: Apache-2.0
"""`trtspec prune-vocab`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import trtspec
from trtspec.cli.layout import pluralize
from trtspec.cli.options import Json, Recipe, Set
from trtspec.cli.progress import build_bars
from trtspec.cli.render import note, print_json, print_line
from trtspec.core.errors import TrtspecError

if TYPE_CHECKING:
    from trtspec.training.prune_vocabulary import PruningResult


def prune_vocab(
    recipe: Recipe,
    vocab: Annotated[int, typer.Option(help="Number of most frequent tokens to keep.", min=1)],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Output directory of the draft.")],
    prompts: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Prompt file or set name (default: the recipe's prompts)."),
    ] = None,
    set_: Set = None,
    max_tokens: Annotated[int, typer.Option(help="New tokens per prompt.", min=2)] = 64,
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
    if json:
        print_json(found.as_dict())
    else:
        _show(found)


def _show(found: PruningResult) -> None:
    whole, (before, after) = found.comparison.whole, found.costs
    texts = pluralize(len(whole.before.texts), "held-out text")
    note(
        f"on {texts}: {whole.before.token_weighted} tokens per step before, {whole.after.token_weighted} now; a step"
        f" takes {before:.3f} and {after:.3f} times one of the target alone, estimated from the weights to read",
        "dim",
    )
    print_line(f"{found.out}: drafts {found.left} tokens", "green")


panel = "Drafts"
command = prune_vocab
