# SPDX-License-Identifier: Apache-2.0
"""The sections about what was measured: speed with and without speculation, and what drafts are accepted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trtspec.reporting.documents import Candidate, Facts
from trtspec.reporting.section import Section, Table
from trtspec.reporting.svg import Series, bars, lines


def bench(facts: Facts) -> Iterator[Section]:
    """Yield the tokens a second of both sides."""
    found = facts.bench
    if found is None:
        return
    arms = {"target alone": found.baseline, "speculative": found.speculative}
    runs = max(len(arm.tokens_per_s) for arm in arms.values())
    series = [Series(name, _padded(arm.tokens_per_s, runs)) for name, arm in arms.items()]
    low, high = found.speedup_interval
    words = (
        f"{found.speedup:.2f} times as fast (95 % interval {low:.2f} to {high:.2f}) on {found.prompts} prompts of up to"
        f" {found.max_tokens} new tokens, one at a time; {found.identical_texts} texts are the same."
    )
    rows = [
        (name, f"{arm.median_tokens_per_s:.1f}", f"{arm.acceptance_rate:.1%}", f"{arm.mean_accepted_len:.2f}")
        for name, arm in arms.items()
    ]
    table = Table.of_numbers("Both sides", ("", "tokens/s (median)", "accepted", "tokens a step"), rows)
    plot = bars("Tokens a second by run", [f"run {number + 1}" for number in range(runs)], series)
    yield Section("Measured: with and without speculation", words, plot, [table])


def by_position(facts: Facts) -> Iterator[Section]:
    """Yield the acceptance at each place of a draft."""
    candidates = _candidates(facts)
    longest = max((len(each.by_position) for each in candidates), default=0)
    if not longest:
        return
    labels = [str(place + 1) for place in range(longest)]
    series = [Series(each.name, _padded(each.by_position, longest)) for each in candidates]
    rows = []
    for each in candidates:
        rates = [f"{rate:.2f}" for rate in each.by_position] + ["-"] * (longest - len(each.by_position))
        rows.append((each.name, f"{each.acceptance_rate:.1%}", *rates))
    table = Table.of_numbers("Accepted of drafted, by place", ("draft", "all", *labels), rows)
    words = "Which share of the tokens drafted at each place of a draft the target would have said itself."
    yield Section("Acceptance by position", words, lines("Acceptance by position", labels, series), [table])


def by_kind(facts: Facts) -> Iterator[Section]:
    """Yield the mean accepted length of each kind of prompt."""
    candidates = _candidates(facts)
    kinds = sorted({each.kind for candidate in candidates for each in candidate.by_kind})
    if len(kinds) < 2:
        return
    found = {
        candidate.name: {each.kind: each.mean_accepted_len.token_weighted for each in candidate.by_kind}
        for candidate in candidates
    }
    none = (0.0, 0.0, 0.0)
    series = [
        Series(name, [of.get(kind, none)[0] for kind in kinds], [of.get(kind, none)[1:] for kind in kinds])
        for name, of in found.items()
    ]
    rows = [(name, *(_interval(of.get(kind)) for kind in kinds)) for name, of in found.items()]
    table = Table.of_numbers("Tokens a step, with 95 % intervals", ("draft", *kinds), rows)
    words = "Tokens that a step gives, by kind of prompt; whiskers are 95 % intervals over these prompts."
    plot = bars("Tokens a step by kind", kinds, series, mark=1.0)
    yield Section("Mean accepted length by kind", words, plot, [table])


def by_length(facts: Facts) -> Iterator[Section]:
    """Yield the expected speed-up of the best candidate by draft length."""
    first = next(iter(_candidates(facts)), None)
    lens = sorted({each.draft_len for each in first.speedups}) if first else []
    if first is None or len(lens) < 2:
        return
    batches = sorted({each.batch for each in first.speedups})
    found = {(each.batch, each.draft_len): each.speedup for each in first.speedups}
    series = [Series(_requests(batch), [found.get((batch, length), 0.0) for length in lens]) for batch in batches]
    rows = [(each.name, *(f"{value:.2f}" for value in each.values)) for each in series]
    labels = [str(length) for length in lens]
    table = Table.of_numbers("Expected speed-up by draft length", ("", *labels), rows)
    plot = lines("Expected speed-up by draft length", labels, series, "x", mark=1.0)
    words = "Expected from acceptance and step times; below 1 it slows down."
    yield Section(f"Draft length: {first.name}", words, plot, [table])


def by_batch(facts: Facts) -> Iterator[Section]:
    """Yield the best speed-up of each candidate by load."""
    candidates = _candidates(facts)
    batches = sorted({each.batch for candidate in candidates for each in candidate.best})
    if len(batches) < 2:
        return
    series, rows = [], []
    for candidate in candidates:
        best = {each.batch: each for each in candidate.best}
        series.append(Series(candidate.name, [best[batch].speedup if batch in best else 0.0 for batch in batches]))
        cells = (f"{best[batch].speedup:.2f} ({best[batch].draft_len})" if batch in best else "-" for batch in batches)
        rows.append((candidate.name, *cells))
    labels = [str(batch) for batch in batches]
    table = Table.of_numbers("Speed-up (draft length) by requests at once", ("draft", *labels), rows)
    plot = lines("Speed-up by requests at once", labels, series, "x", mark=1.0)
    words = "At its best draft length, by how many requests run at once; below 1 the target alone is faster."
    yield Section("Speed-up against load", words, plot, [table])


def _candidates(facts: Facts) -> list[Candidate]:
    """Return what was profiled, the fastest with the fewest requests first."""
    found = facts.profile.methods if facts.profile else []
    return sorted(found, key=lambda each: -each.best[0].speedup if each.best else 0.0)


def _padded(values: Sequence[float], length: int) -> list[float]:
    return [*values, *[0.0] * (length - len(values))]


def _interval(found: tuple[float, float, float] | None) -> str:
    return "-" if found is None else f"{found[0]:.2f} ({found[1]:.2f} to {found[2]:.2f})"


def _requests(batch: int) -> str:
    return "1 request" if batch == 1 else f"{batch} requests"
