# SPDX-License-Identifier: Apache-2.0
"""`trtspec tune`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtspec.cli.layout import pluralize
from trtspec.cli.options import Json, Prompts, Recipe, Set
from trtspec.cli.profile import (
    Concurrency,
    MaxDraftLen,
    MaxTokens,
    Samples,
    Seed,
    Write,
    show_decision,
    show_recommendation,
    write_recommendation,
)
from trtspec.cli.progress import build_bars, counter
from trtspec.cli.render import note, print_json, show_table

if TYPE_CHECKING:
    from trtspec.bench.profile.tune import Tuning


def tune(
    recipe: Recipe,
    set_: Set = None,
    prompts: Prompts = None,
    samples: Samples = 64,
    max_tokens: MaxTokens = 64,
    max_draft_len: MaxDraftLen = 10,
    concurrency: Concurrency = 1,
    seed: Seed = 0,
    write: Write = False,
    json: Json = False,
) -> None:
    """Find the fastest draft length, tree and options.

    Uses successive halving: all variants are measured on a few of your prompts, the better half on twice as many, and
    so on. An interrupted run resumes where it stopped.

    Example: trtspec tune recipes/quickstart.yaml --num-prompts 16
    """
    from trtspec.bench.profile.candidates import ProfileRequest, ProgressUI, SearchLimits
    from trtspec.bench.profile.document import save_profile
    from trtspec.bench.profile.tune import run
    from trtspec.recipe.yaml_edit import check_editable

    if write:
        check_editable(recipe)  # fail before minutes of measuring
    limits = SearchLimits(samples, max_tokens, max_draft_len, concurrency, seed)
    found = run(ProfileRequest(recipe, set_ or [], prompts, None, None, limits), ProgressUI(build_bars, counter))
    document = found.as_dict()
    save_profile(document, f"tune-{found.method}")
    if json:
        print_json(document)
    else:
        show(found)
    if write:
        write_recommendation(recipe, found.recommendation, found.drafts_with)


def show(found: Tuning) -> None:
    """Print the rounds and the recommendation."""
    show_decision(found.recommendation)
    for rung in found.rungs:
        rows = []
        for place, (arm, _) in enumerate(rung.scores):
            best = found.best_in_round(arm, rung)
            cells = (str(best.draft_len), str(best.expected)) if best else ("-", "skipped")
            rows.append(
                (arm.settings, *cells, "continues" if place < rung.kept and rung is not found.rungs[-1] else "")
            )
        title = f"{found.name}: {pluralize(rung.texts, 'prompt')}"
        show_table(title, ("options", "draft_len", "expected speed-up", ""), rows, right=(1, 2))
    for name, why in found.left_out.items():
        note(f"{name} was skipped: {why}", "yellow")
    show_recommendation(found.recommendation, found.drafts_with)


panel = "Decide"
command = tune
