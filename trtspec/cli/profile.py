# SPDX-License-Identifier: Apache-2.0
"""`trtspec profile`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from trtspec.cli.options import Json, Prompts, Recipe, Set
from trtspec.cli.recommended import (
    Concurrency,
    MaxDraftLen,
    MaxTokens,
    Samples,
    Seed,
    Write,
    show_recommendation,
    write_recommendation,
)

if TYPE_CHECKING:
    from trtspec.measure.profile.document import Profile


def profile(
    recipe: Recipe,
    set_: Set = None,
    prompts: Prompts = None,
    drafts: Annotated[
        str | None, typer.Option(metavar="A,B", help="Further drafts to try: directories or hub ids.")
    ] = None,
    methods: Annotated[
        str | None,
        typer.Option(metavar="A,B", help="Methods to try, instead of the recipe's and all without a draft."),
    ] = None,
    samples: Samples = 64,
    max_tokens: MaxTokens = 64,
    max_draft_len: MaxDraftLen = 10,
    concurrency: Concurrency = 1,
    seed: Seed = 0,
    write: Write = False,
    json: Json = False,
) -> None:
    """Measure which draft pays for a target, and how much to draft, on your own prompts.

    The target answers the prompts once, greedily, on the torch engine; what each candidate would have drafted at every
    place of these answers gives its acceptance at every draft length, and steps are timed on this machine.

    Example: trtspec profile recipes/quickstart.yaml --samples 8 --methods draft_target,ngram
    """
    from trtspec.cli.progress import build_bars, counter
    from trtspec.cli.render import print_json
    from trtspec.profiling.asked import Asked, Limits, Screen
    from trtspec.profiling.profile import run
    from trtspec.recipe.edit import check_editable

    if write:
        check_editable(recipe)  # before minutes of measuring
    limits = Limits(samples, max_tokens, max_draft_len, concurrency, seed)
    asked = Asked(recipe, set_ or [], prompts, _names(drafts), _names(methods), limits)
    found = run(asked, Screen(build_bars, counter))
    if json:
        print_json(found.as_dict())
    else:
        show(found)
    if write:
        write_recommendation(recipe, found.recommendation)


def _names(written: str | None) -> list[str] | None:
    return [name.strip() for name in written.split(",") if name.strip()] if written is not None else None


def show(found: Profile) -> None:
    """Print what was measured, by method and by kind of prompt, and what follows from it."""
    from trtspec.cli.layout import counted
    from trtspec.cli.render import note, show_table
    from trtspec.measure.profile.recommend import verdict

    batch = found.recommendation.batch
    batches = found.measured[0].batches if found.measured else []
    rows = []
    for each in sorted(found.measured, key=lambda each: -each.best(batch).expected.value):
        best = each.best(batch)
        acceptance = each.acceptance[best.draft_len]
        faster = [f"{at.expected.value:.2f}x ({at.draft_len})" for at in map(each.best, batches)]
        rows.append(
            (
                each.candidate.name,
                f"{acceptance.depth_rate:.0%}",
                str(acceptance.token_weighted),
                *faster,
                verdict(each, batch),
            )
        )
    columns = ("draft", "accepted", "tokens a step", *(f"at {counted(each, 'request')}" for each in batches), "")
    title = f"{found.name}: {len(found.texts.prompts)} prompts, {found.texts.tokens} tokens of the target"
    show_table(title, columns, rows, right=tuple(range(1, len(columns) - 1)))
    _show_chart(found)
    if found.too_long:
        note(f"{counted(found.too_long, 'prompt')} too long for the engine with the answer: left out", "yellow")
    for name, why in found.left_out.items():
        note(f"{name} was left out: {why}", "yellow")
    if found.parity:
        note(found.parity.detail, "dim")
    _show_kinds(found)
    show_recommendation(found.recommendation)


def _show_chart(found: Profile) -> None:
    """Show how much faster each candidate makes it by load, where there is more than one load."""
    from string import ascii_lowercase

    from trtspec.cli.render import show_chart

    candidates = dict(zip(ascii_lowercase, found.measured, strict=False))
    batches = found.measured[0].batches if found.measured else ()
    if len(batches) > 1:
        rows = [
            (str(batch), [(letter, each.best(batch).expected.value) for letter, each in candidates.items()])
            for batch in batches
        ]
        letters = {letter: each.candidate.name for letter, each in candidates.items()}
        show_chart("speed-up by requests at once; 1x is the target alone", "requests", rows, letters)


def _show_kinds(found: Profile) -> None:
    from trtspec.cli.render import show_table

    chosen = found.chosen
    kinds = sorted(set(found.texts.kinds))
    if chosen is None or len(kinds) < 2:
        return
    own = {kind: chosen.of_kind(kind) for kind in kinds}
    rows = [
        (kind or "(none)", str(len(each.texts)), f"{each.depth_rate:.0%}", str(each.token_weighted))
        for kind, each in own.items()
    ]
    show_table("", ("kind", "prompts", "accepted", "tokens a step"), rows, right=(1, 2, 3))


command = profile
