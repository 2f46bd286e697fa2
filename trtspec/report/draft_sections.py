# SPDX-License-Identifier: Apache-2.0
"""Sections about drafts: a profile by load, draft length, prompt category and position, and a training run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from trtspec.planning.documents import DraftAcceptance, KindStats, ProfiledCandidate
from trtspec.report.documents import ReportInputs
from trtspec.report.plots.bars import grouped
from trtspec.report.plots.frame import COLOURS, Series
from trtspec.report.plots.lines import ALONE, FASTER, RING, against_load, faster_ranges, lines
from trtspec.report.section import Section, Table

PLACE, SHARE = "position in the draft", "accepted"


def by_batch(facts: ReportInputs) -> Iterator[Section]:
    """Yield the best speed-up of each candidate by load, with the break-even load."""
    candidates = ranked(facts)
    batches = sorted({each.batch for candidate in candidates for each in candidate.best})
    if len(batches) < 2:
        return
    ratios, rows = {}, []
    for candidate in candidates:
        best = {each.batch: each for each in candidate.best}
        ratios[candidate.name] = [best[batch].speedup if batch in best else None for batch in batches]
        cells = (f"{best[batch].speedup:.2f} ({best[batch].draft_len})" if batch in best else "-" for batch in batches)
        rows.append((candidate.name, *cells, faster_ranges(batches, ratios[candidate.name])))
    columns = ("draft", *map(str, batches), "faster")
    table = Table.numeric_table("Speed-up (draft length) by concurrency", columns, rows)
    plot = against_load("Speed-up by concurrency", batches, ratios, "concurrency")
    words = f"Expected speed-up at the best draft length for each concurrency. {RING}{_left_out(candidates)}"
    yield Section("Expected: speed-up by load", words, plot, [table])


def by_kind(facts: ReportInputs) -> Iterator[Section]:
    """Yield the mean accepted length of each kind of prompt."""
    candidates = ranked(facts)
    kinds = sorted({each.kind for candidate in candidates for each in candidate.by_kind})
    if len(kinds) < 2:
        return
    found = {
        candidate.name: {each.kind: each.mean_accepted_len.token_weighted for each in candidate.by_kind}
        for candidate in candidates
    }
    series = [
        Series(
            name,
            [of[kind][0] if kind in of else None for kind in kinds],
            [of[kind][1:] if kind in of else None for kind in kinds],
        )
        for name, of in found.items()
    ]
    rows = [(kind, *(_interval(of.get(kind)) for of in found.values())) for kind in kinds]
    table = Table.numeric_table("Tokens per step, with 95 % intervals", ("kind", *found), rows)
    words = f"By kind of prompt; whiskers are 95 % intervals over these prompts.{_left_out(candidates)}"
    plot = grouped(
        "Tokens per step by kind", kinds, series[:COLOURS], "tokens per step (1 is the target alone)", mark=1.0
    )
    yield Section("Mean accepted length by kind", words, plot, [table])


def by_position(facts: ReportInputs) -> Iterator[Section]:
    """Yield the acceptance at each position of a draft, by candidate."""
    candidates = ranked(facts)
    rates = {each.name: each.by_position for each in candidates}
    rows = {each.name: f"{each.acceptance_rate:.1%}" for each in candidates}
    words = f"Share of the tokens drafted at a position that the target accepted.{_left_out(candidates)}"
    yield from _positions("Acceptance by position", words, "draft", rates, rows)


def by_position_and_kind(facts: ReportInputs) -> Iterator[Section]:
    """Yield the acceptance of the first candidate at each position, by kind of prompt."""
    first = next(iter(ranked(facts)), None)
    kinds = [each for each in first.by_kind if each.by_position] if first else []
    if first and len(kinds) > 1:
        kinds = _spread(sorted(kinds, key=lambda kind: -kind.acceptance_rate))
        rates = {each.kind: each.by_position for each in kinds}
        rows = {each.kind: f"{each.acceptance_rate:.1%}" for each in kinds}
        many = f"{len(kinds)} of {len(first.by_kind)} kinds, in order of acceptance"
        words = f"Acceptance of {first.name}, for {many if len(kinds) < len(first.by_kind) else 'each kind of prompt'}."
        yield from _positions("Acceptance by position and kind", words, "kind", rates, rows)


def by_length(facts: ReportInputs) -> Iterator[Section]:
    """Yield the expected speed-up of the best candidate by draft length."""
    first = next(iter(ranked(facts)), None)
    lens = sorted({each.draft_len for each in first.speedups}) if first else []
    if first is None or len(lens) < 2:
        return
    batches = sorted({each.batch for each in first.speedups})
    found = {(each.batch, each.draft_len): each.speedup for each in first.speedups}
    series = [Series(requests(batch), [found.get((batch, length)) for length in lens]) for batch in batches]
    rows = [(each.name, *("-" if value is None else f"{value:.2f}" for value in each.values)) for each in series]
    labels = [str(length) for length in lens]
    table = Table.numeric_table("Expected speed-up by draft length", ("", *labels), rows)
    plot = lines("Expected speed-up by draft length", labels, series, "draft_len", FASTER, (1.0, ALONE))
    words = f"Expected speed-up of {first.name}, from its acceptance and step times."
    yield Section("Draft length", words, plot, [table])


def ranked(facts: ReportInputs) -> list[ProfiledCandidate]:
    """Return the candidates by decreasing speed-up at the smallest batch."""
    found = facts.profile.methods if facts.profile else []
    return sorted(found, key=lambda each: -each.best[0].speedup if each.best else 0.0)


def requests(many: int) -> str:
    """Return "1 request" or "N requests"."""
    return "1 request" if many == 1 else f"{many} requests"


def _positions(
    title: str, words: str, first: str, rates: Mapping[str, Sequence[float]], of_all: dict[str, str]
) -> Iterator[Section]:
    longest = max(map(len, rates.values()), default=0)
    if not longest:
        return
    labels = [str(place + 1) for place in range(longest)]
    rows = [
        (name, of_all[name], *(f"{rate:.2f}" for rate in own), *["-"] * (longest - len(own)))
        for name, own in rates.items()
    ]
    series = [Series(name, own) for name, own in rates.items()][:COLOURS]
    table = Table.numeric_table("Accepted of drafted, by position", (first, "total", *labels), rows)
    yield Section(title, words, lines(title, labels, series, PLACE, SHARE), [table])


def _spread(kinds: list[KindStats]) -> list[KindStats]:
    """Return at most COLOURS of the ranked kinds, evenly spaced, including the first and the last."""
    if len(kinds) <= COLOURS:
        return kinds
    return [kinds[round(number * (len(kinds) - 1) / (COLOURS - 1))] for number in range(COLOURS)]


def _left_out(candidates: Sequence[ProfiledCandidate]) -> str:
    return f" The plot shows the {COLOURS} fastest." if len(candidates) > COLOURS else ""


def _interval(found: tuple[float, float, float] | None) -> str:
    return "-" if found is None else f"{found[0]:.2f} ({found[1]:.2f} to {found[2]:.2f})"


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
        (kind, *map(_mean_interval, pair), word)
        for kind, word, *pair in zip(kinds, words, *sides.values(), strict=True)
    ]
    table = Table("Tokens per step on held-out prompts", ("kind", "before", "after", ""), rows, (1, 2))
    outcome = "The trained draft was published." if found.published else f"Rejected: {'; '.join(found.refusals)}."
    plot = grouped(
        "Tokens per step before and after", kinds, series, "tokens per step (1 is the target alone)", mark=1.0
    )
    yield Section("Training", f"{outcome} Whiskers are 95 % intervals over these prompts.", plot, [table])


def _mean_interval(side: DraftAcceptance) -> str:
    low, high = side.interval
    return f"{side.mean_accepted_len:.2f} ({low:.2f} to {high:.2f})"
