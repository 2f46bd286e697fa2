# SPDX-License-Identifier: Apache-2.0
"""Section about a benchmark: speed with and without speculation, by run."""

from __future__ import annotations

from collections.abc import Iterator

from trtspec.report.documents import ReportInputs
from trtspec.report.plots.bars import grouped
from trtspec.report.plots.frame import Series, format_number
from trtspec.report.section import Section, Table


def bench(facts: ReportInputs) -> Iterator[Section]:
    """Yield the tokens/s with and without speculation."""
    found = facts.bench
    if found is None:
        return
    arms = {"speculative": found.speculative, "target alone": found.baseline}
    runs = max(len(arm.tokens_per_s) for arm in arms.values())
    series = [Series(name, arm.tokens_per_s) for name, arm in arms.items()]
    low, high = found.speedup_interval
    words = (
        f"{found.speedup:.2f} times as fast (95 % interval {low:.2f} to {high:.2f}) on {found.prompts} prompts of up to"
        f" {found.max_tokens} new tokens, one at a time; {found.identical_texts} texts are identical."
    )
    rows = [
        (name, format_number(arm.median_tokens_per_s), f"{arm.acceptance_rate:.1%}", f"{arm.mean_accepted_len:.2f}")
        for name, arm in arms.items()
    ]
    rows = [(name, speed, accepted if name == "speculative" else "-", tokens) for name, speed, accepted, tokens in rows]
    table = Table.numeric_table("Both sides", ("", "tokens/s (median)", "accepted", "tokens per step"), rows)
    plot = grouped("Tokens per second by run", [f"run {run + 1}" for run in range(runs)], series, "tokens per second")
    yield Section("Speed with and without speculation", words, plot, [table])
