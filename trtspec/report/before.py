# SPDX-License-Identifier: Apache-2.0
"""Section about a baseline: speed of the target without speculation, one request at a time."""

from __future__ import annotations

from collections.abc import Iterator

from trtspec.report.documents import ReportInputs
from trtspec.report.section import Section, Table


def baseline(facts: ReportInputs) -> Iterator[Section]:
    """Yield the throughput and the latencies of the target alone."""
    found = facts.baseline
    if found is None:
        return
    speeds = (found.median_tokens_per_s, min(found.tokens_per_s), max(found.tokens_per_s))
    rows = [("tokens/s", *(f"{each:,.1f}" for each in speeds))]
    runs = Table.numeric_table("By run", ("", "median", "slowest", "fastest"), rows)
    spreads = [
        (name, *(f"{each:,.3f}" for each in (spread.p50, spread.p95, spread.mean)))
        for name, spread in (("per request, s", found.request_s), ("per token, ms", found.ms_per_token))
    ]
    requests = Table.numeric_table("By request", ("", "p50", "p95", "mean"), spreads)
    words = f"{found.prompts.count} prompts, at most {found.max_tokens} tokens each, one at a time,"
    words += f" on {found.engine.backend} ({found.engine.measured_by}), {found.time}."
    yield Section("Baseline: the target alone", words, "", [runs, requests])
