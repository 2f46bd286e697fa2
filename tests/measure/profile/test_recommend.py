# SPDX-License-Identifier: Apache-2.0
"""What follows from acceptance and step times."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from trtspec.measure.profile.acceptance import Acceptance, Counts, count_steps
from trtspec.measure.profile.candidate import Candidate
from trtspec.measure.profile.measured import Measured, least_seconds
from trtspec.measure.profile.recommend import recommend, verdict
from trtspec.torch_engine.replay import Proposed


def places(*matched: int, depth: int = 4) -> list[Proposed]:
    return [Proposed(depth, depth, each) for each in matched]


def measured(method: str, accepted: dict[int, int], cost: dict[int, dict[int, float]], steps: int = 100) -> Measured:
    """Return a candidate of which `accepted` tokens by draft length come in so many steps, ten texts alike."""
    acceptance = {
        length: Acceptance((Counts(steps, steps * length, many, (many,), (steps * length,)),) * 10, ("",) * 10)
        for length, many in accepted.items()
    }
    seconds = {(batch, length): each for batch, costs in cost.items() for length, each in costs.items()}
    return Measured(Candidate(method, None, {}, True, Path()), acceptance, seconds)


def test_steps_are_walked_as_the_engine_takes_them() -> None:
    """Behind an accepted draft the next step begins; the last token is never drafted."""
    found = count_steps(places(2, 0, 0, 1, 0, 4, 4), 2)
    # at 0: 2 of 2, at 3: 1 of 2, at 5: one is left to draft and it is accepted
    assert (found.steps, found.drafted, found.accepted) == (3, 5, 4)
    assert (found.drafted_at, found.reached) == ((3, 2), (3, 1))
    assert count_steps(places(4), 4) == Counts(1, 0, 0, (0,) * 4, (0,) * 4)


def test_a_tree_counts_whole() -> None:
    tree = [Proposed(2, 7, 1), Proposed(2, 7, 0), Proposed(2, 7, 2)]
    found = count_steps(tree, 2)
    assert (found.steps, found.drafted, found.accepted) == (2, 7, 1)


def test_means_by_step_and_by_text() -> None:
    found = Acceptance((Counts(1, 4, 4), Counts(9, 36, 0)), ("a", "b"))
    assert found.token_weighted.value == pytest.approx(1.4)
    assert found.request_weighted.value == pytest.approx(3.0)
    assert found.of_kind("a").token_weighted.value == 5.0
    assert found.token_weighted.low < 1.4 < found.token_weighted.high


def test_the_fastest_length_by_batch_becomes_the_schedule() -> None:
    """Accepted tokens saturate, steps become dearer with the batch: at 2 and 8 by what was measured around them."""
    accepted = {1: 80, 2: 140, 3: 180, 4: 190}
    cheap = {0: 1.0, 1: 1.0, 2: 1.0, 3: 1.0, 4: 1.2}
    dear = {0: 1.0, 1: 1.4, 2: 1.9, 3: 2.5, 4: 3.0}
    useless = {0: 1.0, 1: 2.0, 2: 3.0, 3: 4.0, 4: 5.0}
    found = recommend([measured("ngram", accepted, {1: cheap, 4: dear, 16: useless})], 1)
    assert (found.candidate and found.candidate.method, found.draft_len) == ("ngram", 3)
    assert found.schedule == ((2, 3), (8, 1))
    assert found.speedup == pytest.approx(2.8)
    section = found.speculation
    assert section["schedule"] == [{"max_batch": 2, "draft_len": 3}, {"max_batch": 8, "draft_len": 1}]


def test_a_length_changes_where_another_is_clearly_faster() -> None:
    """With 4 requests one token less is 1.02 times as fast, with 16 it is 1.09 times."""
    cheap, even, dear = {0: 1.0, 1: 1.0, 2: 1.0}, {0: 1.0, 1: 1.2, 2: 1.37}, {0: 1.0, 1: 1.3, 2: 1.58}
    found = measured("ngram", {1: 60, 2: 79}, {1: cheap, 4: even, 16: dear})
    gains = [found.speedup(batch, 1).expected.value / found.speedup(batch, 2).expected.value for batch in (4, 16)]
    assert [round(gain, 2) for gain in gains] == [1.02, 1.09]
    assert recommend([found], 1).schedule == ((4, 2), (16, 1))


def test_a_length_that_does_not_pay_is_not_kept() -> None:
    """With 4 requests one token is 1.07 times as fast as none, two are 1.04 times."""
    found = measured("ngram", {1: 60, 2: 79}, {1: {0: 1.0, 1: 1.0, 2: 1.0}, 4: {0: 1.0, 1: 1.5, 2: 1.72}})
    assert [round(found.speedup(4, length).expected.value, 2) for length in (1, 2)] == [1.07, 1.04]
    assert recommend([found], 1).schedule == ((2, 2), (4, 1))


def test_many_requests_need_more_than_one_does() -> None:
    """One token is 1.04 times as fast as none: with the fewest requests it is drafted, with more it might be slower."""
    cheap, even = {0: 1.0, 1: 1.0}, {0: 1.0, 1: 1.54}
    found = measured("ngram", {1: 60}, {1: even, 4: even})
    assert round(found.best(4).expected.value, 2) == 1.04
    assert recommend([found], 1).schedule == ((1, 1),)
    assert recommend([measured("ngram", {1: 60}, {1: cheap, 4: even})], 1).schedule == ((2, 1),)


def test_a_schedule_goes_on_where_what_drafts_costs_more_idle() -> None:
    """With 4 requests both are 0.97 times as fast as the target alone; one of them because the draft reads prompts."""
    cheap = {0: 1.0, 1: 1.0, 2: 1.0}
    slow = measured("draft_target", {1: 60, 2: 80}, {1: cheap, 4: {0: 1.0, 1: 1.85, 2: 1.86}})
    assert (round(slow.best(4).expected.value, 2), slow.idle(4)) == (0.97, 1.0)
    assert recommend([slow], 1).schedule == ((2, 2),)
    reading = measured("draft_target", {1: 60, 2: 80}, {1: cheap, 4: {0: 1.0, 1: 1.66, 2: 1.68}})
    reading = replace(reading, prefills={1: (1.0, 1.0), 4: (0.0, 1.0)}, answer_len=11)
    assert (round(reading.best(4).expected.value, 2), round(reading.idle(4), 2)) == (0.97, 0.91)
    assert recommend([reading], 1).schedule == ()  # one length for all


def test_one_length_for_all_needs_no_schedule() -> None:
    flat = {0: 1.0, 1: 1.0, 2: 1.0}
    found = recommend([measured("ngram", {1: 50, 2: 80}, {1: flat, 4: flat})], 4)
    assert (found.schedule, found.draft_len) == ((), 2)


def test_of_two_as_good_the_shorter_is_taken() -> None:
    even = {0: 1.0, 1: 1.0, 2: 1.5}
    best = measured("ngram", {1: 50, 2: 125}, {1: even}).best(1)
    assert (best.draft_len, best.expected.value) == (1, 1.5)


def test_the_better_draft_first_and_none_where_none_pays() -> None:
    cost = {1: {0: 1.0, 4: 2.0}}
    good, bad = measured("draft_target", {4: 300}, cost), measured("ngram", {4: 50}, cost)
    found = recommend([bad, good], 1)
    assert found.candidate is good.candidate
    assert (verdict(good, 1), verdict(bad, 1)) == ("pays", "harmful")
    alone = recommend([bad], 1)
    assert (alone.candidate, alone.speculation, alone.speedup) == (None, {"method": "none"}, 1.0)
    assert recommend([], 1).speculation == {"method": "none"}


@pytest.mark.parametrize(("accepted", "word"), [(196, "harmful"), (220, "train"), (260, "pays")])
def test_words_for_acceptance(accepted: int, word: str) -> None:
    assert verdict(measured("ngram", {4: accepted}, {1: {0: 1.0, 4: 1.1}}), 1) == word


def test_times_between_measured_lengths() -> None:
    found = measured("ngram", {1: 10, 2: 20, 3: 30}, {1: {0: 1.0, 1: 2.0, 3: 4.0}})
    assert found.step_seconds(1, 2) == 3.0


def test_the_least_counts_and_no_more_than_longer_drafts_or_more_rows_took() -> None:
    took = {
        (1, 0): [1.0, 1.5], (1, 2): [4.0, 5.0], (1, 4): [3.0, 6.0],
        (2, 0): [2.5, 3.0], (2, 2): [4.5, 4.5], (2, 4): [8.0, 9.0],
        (4, 0): [2.0, 2.0], (4, 2): [7.0, 5.0], (4, 4): [6.0, 8.0],
    }  # fmt: skip
    assert least_seconds(took) == {
        (1, 0): 1.0, (1, 2): 3.0, (1, 4): 3.0,
        (2, 0): 2.0, (2, 2): 4.5, (2, 4): 6.0,
        (4, 0): 2.0, (4, 2): 5.0, (4, 4): 6.0,
    }  # fmt: skip


def test_prefills_of_several_requests_lie_on_a_line() -> None:
    """At 3 requests steps take 2 s and prefills 6 s of the 11 tokens that follow the first."""
    even = {0: 1.0, 1: 1.0}
    found = measured("ngram", {1: 100}, {1: even, 5: {0: 3.0, 1: 3.0}})
    found = replace(found, prefills={1: (2.0, 2.0), 5: (10.0, 10.0)}, answer_len=12.0)
    assert found.best(3).expected.value == pytest.approx((2 + 6 / 11) / (2 / 2 + 6 / 11))
