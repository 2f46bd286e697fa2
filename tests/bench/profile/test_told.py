# SPDX-License-Identifier: Apache-2.0
"""Draft statistics reported by a server, compared with the steps they describe."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from random import Random

import pytest

from trtspec.bench.load.api import LoadSampling
from trtspec.bench.load.arrivals import Closed
from trtspec.bench.load.rounds import Round
from trtspec.bench.load.sample import RequestSample
from trtspec.bench.profile.acceptance import AcceptanceStats, StepCounts, count_steps
from trtspec.bench.profile.candidates import SearchLimits
from trtspec.bench.profile.server_profile import (
    ServerProfiler,
    _is_precise,
    _round_prompts,
    counts_from_sample,
    stream_times,
)
from trtspec.engine.measurement import ReplayedDraft
from trtspec.engine.prompts.prompt import Prompt


def told(places: list[ReplayedDraft], draft_len: int) -> RequestSample:
    """Return the sample of a server that takes the steps of a text and reports those that drafted."""
    by_length, drafted, at = Counter[int](), 0, 0
    while at < len(places):
        depth = min(draft_len, len(places) - at - 1)
        accepted = min(depth, places[at].matched)
        by_length[accepted] += depth > 0
        drafted, at = drafted + depth, at + accepted + 1
    histogram = tuple(by_length[length] for length in range(draft_len + 1))
    accepted = sum(length * steps for length, steps in by_length.items())
    return RequestSample("", "", 0.0, 0.0, (0.1, 0.2), None, len(places) + 1, True, drafted, accepted, None, histogram)


def texts(many: int, draft_len: int) -> list[list[ReplayedDraft]]:
    draws = Random(many)
    return [
        [ReplayedDraft(draft_len, draft_len, draws.choice((0, 1, 2, 5))) for _ in range(draws.randint(1, 60))]
        for _ in range(many)
    ]


@pytest.mark.parametrize("draft_len", [1, 2, 5])
def test_counts_from_a_sample_match_the_steps(draft_len: int) -> None:
    """Counts are exact except at the end of a text, where only the total of shorter drafts is known."""
    made = texts(40, draft_len)
    true = [count_steps(each, draft_len) for each in made]
    found = [counts_from_sample(told(each, draft_len), draft_len) for each in made]
    for ours, theirs in zip(found, true, strict=True):
        assert (ours.steps, ours.drafted, ours.accepted) == (theirs.steps, theirs.drafted, theirs.accepted)
        assert ours.reached == theirs.reached
        assert (sum(ours.drafted_at), ours.drafted_at[0]) == (ours.drafted, theirs.drafted_at[0])
    ours, theirs = (AcceptanceStats(tuple(each), ("",) * len(made)) for each in (found, true))
    assert ours.token_weighted == theirs.token_weighted
    assert ours.request_weighted == theirs.request_weighted
    assert ours.by_position == pytest.approx(theirs.by_position, abs=0.02)
    assert ours.depth_rate == theirs.depth_rate


@pytest.mark.slow
def test_truncated_counts_match_shorter_drafts() -> None:
    """Truncation is exact if acceptance does not depend on the position."""
    draws = Random(0)
    made = [[ReplayedDraft(5, 5, draws.choice((0, 1, 2, 5))) for _ in range(600)] for _ in range(20)]
    whole = AcceptanceStats(tuple(count_steps(each, 5) for each in made), ("",) * 20)
    for draft_len in (1, 2, 3, 4):
        shorter = AcceptanceStats(tuple(count_steps(each, draft_len) for each in made), ("",) * 20)
        cut = whole.cut(draft_len)
        assert cut.token_weighted.value == pytest.approx(shorter.token_weighted.value, rel=0.03)
        assert cut.by_position == pytest.approx(shorter.by_position, abs=0.03)


@pytest.mark.slow
def test_redrafted_counts_match_shorter_lookup_drafts() -> None:
    """Looked-up tokens are correct in long runs or not at all, so truncated long drafts underestimate short ones."""
    draws = Random(0)

    def text() -> list[bool]:
        return [right for _ in range(30) for right in [True] * int(draws.choice((0, draws.expovariate(0.1)))) + [False]]

    rights = [text() for _ in range(200)]
    made = [[ReplayedDraft(10, 10, min(10, in_a_row(right[at:]))) for at in range(len(right))] for right in rights]
    whole = AcceptanceStats(tuple(count_steps(each, 10) for each in made), ("",) * 200)
    for draft_len in (1, 2, 3, 5, 8, 10):
        shorter = AcceptanceStats(tuple(count_steps(each, draft_len) for each in made), ("",) * 200)
        again = whole.redrafted(draft_len)
        assert again.token_weighted.value == pytest.approx(shorter.token_weighted.value, rel=0.02)
        assert again.rate == pytest.approx(shorter.rate, abs=0.02)
        assert again.by_position == pytest.approx(shorter.by_position, abs=0.03)
    assert whole.cut(2).token_weighted.value < 0.95 * whole.redrafted(2).token_weighted.value


def in_a_row(right: list[bool]) -> int:
    """Return the number of leading true values."""
    return next((number for number, each in enumerate(right) if not each), len(right))


def test_speeds_use_all_rounds_without_their_last_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last two requests end at a lower concurrency; 9 tokens take 2 and 4 s alone, 1 and 3 s with drafts."""
    seconds = {"alone": iter((2.0, 4.0)), "drafts": iter((3.0, 1.0))}

    async def ask(client: None, endpoint: str, load: Closed, prompts: list[Prompt], wanted: LoadSampling) -> Round:
        counted = RequestSample(
            "", "", 0.0, 0.0, (0.1, next(seconds[endpoint])), None, 9, drafted=4, accepted=4, steps=4
        )
        end = replace(counted, chunks_s=(0.1, 100.0))
        return Round([counted] * (len(prompts) - load.concurrency) + [end] * load.concurrency)

    monkeypatch.setattr("trtspec.bench.profile.server_profile.ask_all", ask)
    monkeypatch.setattr("trtspec.bench.profile.server_profile.MOST_ROUNDS", 2)
    asking = ServerProfiler([Prompt("", "", "")], SearchLimits(1, 9, 1, 1, 0), [2], 0, lambda what, done, total: None)
    found = asyncio.run(asking._rounds(None, {0: "alone", 1: "drafts"}, asking.prompts, 2))  # type: ignore[arg-type,dict-item]
    speeds = {length: stream_times(timed, 2, length).tokens_per_s for length, timed in found.items()}
    assert speeds == pytest.approx({0: 2 * 9 / 3, 1: 2 * 9 / 2})


def test_counted_requests_of_rounds_cycle_through_all_prompts() -> None:
    """The last `batch` prompts of a round do not count, and are repeated in the next round."""
    prompts = [Prompt(str(number), "", "") for number in range(10)]
    rounds = [_round_prompts(number, prompts, 4) for number in range(5)]
    counted = [prompt for each in rounds for prompt in each[: len(each) - 4]]
    assert [len(each) for each in rounds] == [16] * 5
    assert counted == [*prompts * 6]
    assert len(_round_prompts(3, prompts[:1], 16)) == 48


def test_rounds_are_precise_once_the_interval_is_narrow() -> None:
    """Rounds with failed requests are ignored; a length without valid rounds does not delay the end."""

    def timed(*seconds: float) -> list[list[RequestSample]]:
        return [[RequestSample("", "", 0.0, 0.0, (0.1, last_s), None, 9)] if last_s else [] for last_s in seconds]

    alone = timed(4.0, 8.0, 4.0, 4.0)
    assert _is_precise(alone, timed(2.0, 4.0, 2.0, 2.02))
    assert _is_precise(alone, timed(2.0, 0.0, 2.0, 2.0))
    assert _is_precise(alone, timed(0.0, 0.0, 0.0, 0.0))
    assert _is_precise(alone, alone)
    assert not _is_precise(alone, timed(2.0, 2.0, 2.0, 2.0))
    assert not _is_precise(alone, timed(2.0, 0.0, 0.0, 0.0))


def test_counts_from_totals_have_no_positions() -> None:
    sample = RequestSample("", "", 0.0, 0.0, (0.1, 0.2), None, 21, True, 30, 12, 8)
    found = counts_from_sample(sample, 4)
    assert found == StepCounts(8, 30, 12)
    assert AcceptanceStats((found,), ("",)).depth_rate == 0.4


def test_implausible_server_counts_give_valid_rates() -> None:
    sample = RequestSample("", "", 0.0, 0.0, (0.1, 0.2), None, 2, True, 10**12, 10**12, None, (0, 3, 10**12))
    found = counts_from_sample(sample, 4)
    assert found.steps > 0
    assert len(found.reached) == len(found.drafted_at) == 4
    assert all(0 <= rate <= 1 for rate in AcceptanceStats((found,), ("",)).by_position)


def test_stream_times_derive_step_time_and_speed() -> None:
    """Nine tokens follow the first in 0.9 s, three per step, at concurrency two."""
    sample = RequestSample("", "", 0.0, 0.0, (0.1, 0.5, 1.0), None, 10, True, 6, 6, 3, (0, 0, 3))
    found = stream_times([sample, sample], 2, 2)
    assert (found.step_s, found.first_s, found.tokens_per_s) == pytest.approx((0.3, 0.1, 20.0))
