# SPDX-License-Identifier: Apache-2.0
"""Section about a training run: acceptance on held-out prompts before and after."""

from __future__ import annotations

from collections.abc import Iterator

from trtspec.report.documents import ReportInputs
from trtspec.report.plots.bars import grouped
from trtspec.report.plots.frame import Series
from trtspec.report.schemas.train import DraftAcceptance
from trtspec.report.section import Section, Table


def training(facts: ReportInputs) -> Iterator[Section]:
    """Yield the mean accepted length of both drafts for each kind of held-out prompt."""
    found = facts.training
    if found is None:
        return
    kinds = ["all", *(each.kind for each in found.kinds)]
    sides = {
        "before": [found.before, *(each.before for each in found.kinds)],
        "after": [found.after, *(each.after for each in found.kinds)],
    }
    series = [
        Series(name, [each.mean_accepted_len for each in side], [each.interval for each in side])
        for name, side in sides.items()
    ]
    words = ["", *(each.verdict for each in found.kinds)]
    rows = [
        (kind, *map(_interval, pair), word) for kind, word, *pair in zip(kinds, words, *sides.values(), strict=True)
    ]
    table = Table("Tokens per step on held-out prompts", ("kind", "before", "after", ""), rows, (1, 2))
    outcome = "The trained draft was published." if found.published else f"Rejected: {'; '.join(found.refusals)}."
    plot = grouped(
        "Tokens per step before and after", kinds, series, "tokens per step (1 is the target alone)", mark=1.0
    )
    yield Section("Training", f"{outcome} Whiskers are 95 % intervals over these prompts.", plot, [table])


def _interval(side: DraftAcceptance) -> str:
    low, high = side.interval
    return f"{side.mean_accepted_len:.2f} ({low:.2f} to {high:.2f})"
