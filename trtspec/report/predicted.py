# SPDX-License-Identifier: Apache-2.0
"""Section about the prediction of a plan."""

from __future__ import annotations

from collections.abc import Iterator

from trtspec.report.against_load import RING, against_load
from trtspec.report.crossing import faster_ranges
from trtspec.report.documents import ReportInputs
from trtspec.report.section import Section, Table


def predicted(facts: ReportInputs) -> Iterator[Section]:
    """Yield the predicted speed-up by batch size, with a line for each acceptance rate."""
    found = facts.plan.predicted if facts.plan else None
    if found is None or len(found.batches) < 2:
        return
    batches = [each.batch for each in found.batches]
    speedups = {rate: [each.speedup.get(rate) for each in found.batches] for rate in found.batches[0].speedup}
    rows = [
        (rate, *("-" if value is None else f"{value:.2f}" for value in values), faster_ranges(batches, values))
        for rate, values in speedups.items()
    ]
    columns = ("acceptance rate", *map(str, batches), "faster")
    table = Table.numeric_table("Predicted speed-up by batch size", columns, rows)
    named = {f"acceptance rate {rate}": values for rate, values in speedups.items()}
    plot = against_load("Predicted speed-up by batch size", batches, named, "batch size")
    words = f"On {found.gpus} {found.gpu}, draft_len {found.draft_len}; predicted, not measured. {RING}"
    yield Section("Predicted: speed-up by batch size", words, plot, [table])
