# SPDX-License-Identifier: Apache-2.0
"""Summarize the rounds of one arm: rates, percentiles, goodput and acceptance."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import Any

from trtspec.bench.load.counters import Counters
from trtspec.bench.load.rounds import Round, sent_late_ms
from trtspec.bench.load.sample import RequestSample
from trtspec.bench.load.slo import Slo

PERCENTILES = (50, 90, 95, 99)
MOST_ERRORS = 5  # distinct errors to list


def summarize_arm(rounds: Sequence[Round], counters: Counters, slo: Slo | None) -> dict[str, Any]:
    """Return an arm's JSON fields; percentiles cover all requests with a complete response."""
    samples = [sample for each in rounds for sample in each.answered]
    seconds = sum(each.seconds for each in rounds)
    failed = [sample.error for each in rounds for sample in each.samples if not sample.ok]
    kept = sum(map(slo.holds, samples)) if slo else None
    return {
        "requests": len(samples),
        "failed": len(failed),
        "errors": dict(Counter(failed).most_common(MOST_ERRORS)),
        "seconds": round(seconds, 4),
        "prompt_tokens": _total(sample.prompt_tokens for sample in samples),
        "output_tokens": sum(sample.output_tokens for sample in samples),
        "tokens_are_counted": all(sample.is_counted for sample in samples),
        "requests_per_s": round(len(samples) / seconds, 4),
        "output_tokens_per_s": round(
            sum(each.steady_state_tokens for each in rounds) / sum(each.steady_state_s for each in rounds), 3
        ),
        "request_tokens_per_s": summarize_values([sample.tokens_per_s for sample in samples]),
        "ttft_ms": summarize_values([sample.ttft_ms for sample in samples]),
        "tpot_ms": summarize_values([sample.tpot_ms for sample in samples if sample.tpot_ms is not None]),
        "itl_ms": summarize_values([gap for sample in samples for gap in sample.itl_ms]),
        "e2e_ms": summarize_values([sample.e2e_ms for sample in samples]),
        "e2e_growth": round(statistics.geometric_mean(each.e2e_growth for each in rounds), 3),
        "sent_late_ms": summarize_values(sent_late_ms(rounds)),
        "goodput_requests_per_s": None if kept is None else round(kept / seconds, 4),
        "goodput_share": None if kept is None else round(kept / (len(samples) + len(failed)), 4),
        **_drafts(samples, counters),
        "by_kind": _by_kind(samples),
        "finish_reasons": dict(Counter(sample.finish_reason or "unknown" for sample in samples)),
        "client_cpu_share": _cpu_share(rounds, seconds),
        "rounds": [each.as_dict(slo) for each in rounds],
    }


def summarize_values(values: Sequence[float]) -> dict[str, float] | None:
    """Return mean, percentiles (linear interpolation, as in numpy), minimum and maximum, or None if empty."""
    import numpy as np

    if not values:
        return None
    found = {"mean": float(np.mean(values)), "min": min(values)}
    for share, value in zip(PERCENTILES, np.percentile(values, PERCENTILES), strict=True):
        found[f"p{share}"] = float(value)
    return {name: round(value, 4) for name, value in {**found, "max": max(values)}.items()}


def _drafts(samples: Sequence[RequestSample], counters: Counters) -> dict[str, Any]:
    """Return rates from per-response counts, else from counters; `drafts_told_by` is the source."""
    told = [sample for sample in samples if sample.drafted is not None and sample.accepted is not None]
    if not told:
        by_counters = counters.as_dict()
        told_by = "counters" if by_counters["acceptance_rate"] is not None else ""
        return {**by_counters, "acceptance_histogram": [], "drafts_told_by": told_by}
    steps = zip_longest(*(sample.histogram for sample in told), fillvalue=0)
    histogram = [sum(here) for here in steps]
    return {**_rates(told), "acceptance_histogram": histogram, "drafts_told_by": "answers"}


def _rates(samples: Sequence[RequestSample]) -> dict[str, Any]:
    """Return rates over all drafted tokens, so long responses have more weight."""
    drafted, accepted = (sum(each or 0 for each in counts) for counts in
                         ([sample.drafted for sample in samples], [sample.accepted for sample in samples]))  # fmt: skip
    steps = sum(sample.steps or 0 for sample in samples)
    return {
        "acceptance_rate": round(accepted / drafted, 4) if drafted else None,
        "mean_accepted_len": round(1 + accepted / steps, 4) if steps and drafted else None,
    }


def _by_kind(samples: Sequence[RequestSample]) -> dict[str, dict[str, Any]]:
    """Return metrics per category of prompts; empty for a single category."""
    kinds = defaultdict(list)
    for sample in samples:
        kinds[sample.kind].append(sample)
    if len(kinds) < 2:
        return {}
    return {
        kind or "-": {"requests": len(found), "tpot_ms": summarize_values(_tpots(found)), **_rates(found)}
        for kind, found in sorted(kinds.items())
    }


def _tpots(samples: Iterable[RequestSample]) -> list[float]:
    return [sample.tpot_ms for sample in samples if sample.tpot_ms is not None]


def _cpu_share(rounds: Sequence[Round], seconds: float) -> float | None:
    spent = [each.client_cpu_s for each in rounds if each.client_cpu_s is not None]
    return round(sum(spent) / seconds, 4) if spent else None


def _total(counts: Iterable[int | None]) -> int | None:
    """Return the sum, or None if a value is unknown."""
    found = list(counts)
    known = [count for count in found if count is not None]
    return sum(known) if len(known) == len(found) else None
