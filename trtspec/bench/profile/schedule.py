# SPDX-License-Identifier: Apache-2.0
"""How much to draft for how many requests at once, so that a server is nowhere slower than its target alone.

A recipe's schedule drafts no more for more requests than for fewer. So what pays with many is drafted for fewer, too,
and where these lose by it there is no schedule.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trtspec.bench.profile.measured import Measured, Speedup

PAYS = 1.02  # times as fast: less is within what a machine's noise makes of two equal runs
LOSES = 1.0  # times as fast, of loads that have to draft for the sake of others: less than that
# Times as fast, for more requests than the fewest: what was expected of one token for many was up to 9 % too much
# (benchmarks/experiments/log.md), and drafting in vain makes a server slower than its target alone.
GOES_ON = 1.05
CHANGES = 1.04  # speed-up over the previous length; predictions err by up to 5 % (benchmarks/experiments/log.md)


@dataclass(frozen=True)
class Schedule:
    """Pairs (requests, draft_len), beyond the last of which nothing is drafted; without any `why_not` says why.

    `at` is what is expected with as many requests as were asked about.
    """

    pairs: tuple[tuple[int, int], ...] = ()
    at: Speedup | None = None
    why_not: str = ""


def schedule_of(measured: Measured, batch: int) -> Schedule:
    """Return what a candidate is to draft, if that pays with `batch` requests at once."""
    if not measured.candidate.takes_draft_len:
        return _unchanging(measured, batch)
    lens = [length for length in measured.acceptance if not _lost_below(measured, batch, length)]
    if not lens:
        lost = _lost_below(measured, batch, min(measured.acceptance))
        return Schedule(why_not=f"fewer requests would have to draft as much, and {_slow(lost)}")
    pairs = _pairs(measured, batch, lens)
    length = next((length for most, length in pairs if batch <= most), None)
    if length is None:
        return Schedule(why_not=_unsure(measured, batch))
    return Schedule(pairs, measured.speedup(batch, length))


def requests_at_once(batch: int) -> str:
    """Return a load in words."""
    return "one request at a time" if batch == 1 else f"{batch} requests at once"


def _unchanging(measured: Measured, batch: int) -> Schedule:
    """Return the schedule of what drafts alike however many requests run, as its options say how much."""
    length = max(measured.acceptance)
    at, loads = measured.speedup(batch, length), [measured.speedup(load, length) for load in measured.batches]
    if lost := _first_lost(loads):
        return Schedule(why_not=f"it drafts however many requests run, and {_slow(lost)}")
    if at.expected.value < _clearly(measured, batch):
        return Schedule(why_not=_unsure(measured, batch))
    return Schedule(((loads[-1].batch, length),), at)


def _lost_below(measured: Measured, batch: int, length: int) -> Speedup | None:
    """Return the first of fewer requests than `batch` that lose where they draft as much as `length` or more."""
    as_long = [each for each in measured.acceptance if each >= length]
    return _first_lost([_for_others(measured, load, as_long) for load in _loads(measured) if load < batch])


def _for_others(measured: Measured, load: int, lens: Sequence[int]) -> Speedup:
    """Return the best length for so many requests, or the fastest where shorter ones that are as good lose."""
    best = measured.best(load, lens)
    if best.expected.value >= LOSES:
        return best
    return max((measured.speedup(load, length) for length in lens), key=lambda each: each.expected.value)


def _pairs(measured: Measured, batch: int, lens: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Return the best draft length up to each load, `lens` being those for `batch` requests.

    It ends where drafting is not clearly expected to pay: to wait until that is sure would give away what it mostly
    brings. The length changes only where another is expected to be clearly faster, as the one before is known to
    do well. Fewer requests than `batch` draft for the sake of these, as long as they do not lose by it.
    """
    pairs: list[tuple[int, int]] = []
    wanted = measured.best(batch, lens).draft_len
    as_long = [length for length in measured.acceptance if length >= wanted]
    for load in _loads(measured):
        if load < batch:
            best, least = _for_others(measured, load, as_long), LOSES
        else:
            best, least = measured.best(load, lens if load == batch else None), _clearly(measured, load)
        length = best.draft_len
        if best.expected.value < least:
            break
        if pairs:
            before = pairs[-1][1]
            good = least if length > before else max(least, best.expected.value / CHANGES)
            if measured.speedup(load, before).expected.value >= good:
                pairs.pop()
                length = before
            elif length > before:
                break
        pairs.append((load, length))
    return tuple(pairs)


def _clearly(measured: Measured, load: int) -> float:
    """Return from which expected speed-up on so many requests are to be drafted for, for their own sake."""
    return (PAYS if load == measured.batches[0] else GOES_ON) * measured.idle(load)


def _loads(measured: Measured) -> list[int]:
    """Return what was measured, and the powers of two between."""
    fewest, most = measured.batches[0], measured.batches[-1]
    between = (1 << power for power in range(fewest.bit_length(), most.bit_length()))
    return sorted({*measured.batches, *(each for each in between if each < most)})


def _first_lost(loads: Sequence[Speedup]) -> Speedup | None:
    return next((each for each in loads if each.expected.value < LOSES), None)


def _slow(lost: Speedup | None) -> str:
    return f"with {requests_at_once(lost.batch)} it is {lost.expected.value:.2f} times as fast" if lost else ""


def _unsure(measured: Measured, batch: int) -> str:
    return f"less than {_clearly(measured, batch):.2f} times is not sure to be faster"
