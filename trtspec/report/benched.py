# SPDX-License-Identifier: Apache-2.0
"""The sections about a benchmark: both sides, run by run."""

from __future__ import annotations

from collections.abc import Iterator

from trtspec.report.documents import Facts
from trtspec.report.plots.bars import grouped
from trtspec.report.plots.frame import Series, short
from trtspec.report.section import Section, Table


def bench(facts: Facts) -> Iterator[Section]:
    """Yield the tokens a second of both sides."""
    found = facts.bench
    if found is None:
        return
    arms = {"speculative": found.speculative, "target alone": found.baseline}
    runs = max(len(arm.tokens_per_s) for arm in arms.values())
    series = [Series(name, arm.tokens_per_s) for name, arm in arms.items()]
    low, high = found.speedup_interval
    words = (
        f"{found.speedup:.2f} times as fast (95 % interval {low:.2f} to {high:.2f}) on {found.prompts} prompts of up to"
        f" {found.max_tokens} new tokens, one at a time; {found.identical_texts} texts are the same."
    )
    rows = [
        (name, short(arm.median_tokens_per_s), f"{arm.acceptance_rate:.1%}", f"{arm.mean_accepted_len:.2f}")
        for name, arm in arms.items()
    ]
    rows = [(name, speed, accepted if name == "speculative" else "-", tokens) for name, speed, accepted, tokens in rows]
    table = Table.of_numbers("Both sides", ("", "tokens/s (median)", "accepted", "tokens a step"), rows)
    plot = grouped("Tokens a second by run", [f"run {run + 1}" for run in range(runs)], series, "tokens a second")
    yield Section("Speed with and without speculation", words, plot, [table])
