# SPDX-License-Identifier: Apache-2.0
"""Recommendations derived from acceptance and step times."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from trtspec.bench.decision import decide
from trtspec.bench.profile.acceptance import AcceptanceStats, StepCounts, count_steps
from trtspec.bench.profile.candidates import ProfileCandidate
from trtspec.bench.profile.recommend import CandidateMeasurements, least_seconds, rate_candidate, recommend
from trtspec.engine.measurement import ReplayedDraft


def places(*matched: int, depth: int = 4) -> list[ReplayedDraft]:
    return [ReplayedDraft(depth, depth, each) for each in matched]


def measured(
    method: str, accepted: dict[int, int], cost: dict[int, dict[int, float]], steps: int = 100
) -> CandidateMeasurements:
    """Return a candidate with ten equal texts, `accepted` tokens by draft length, and the given step times."""
    acceptance = {
        length: AcceptanceStats((StepCounts(steps, steps * length, many, (many,), (steps * length,)),) * 10, ("",) * 10)
        for length, many in accepted.items()
    }
    seconds = {(batch, length): each for batch, costs in cost.items() for length, each in costs.items()}
    return CandidateMeasurements(ProfileCandidate(method, None, {}, True, Path()), acceptance, seconds)


def test_step_counts_follow_the_engines_steps() -> None:
    """The next step starts after the accepted draft; the last token is never drafted."""
    found = count_steps(places(2, 0, 0, 1, 0, 4, 4), 2)
    # at 0: 2 of 2, at 3: 1 of 2, at 5: one is left to draft and it is accepted
    assert (found.steps, found.drafted, found.accepted) == (3, 5, 4)
    assert (found.drafted_at, found.reached) == ((3, 2), (3, 1))
    assert count_steps(places(4), 4) == StepCounts(1, 0, 0, (0,) * 4, (0,) * 4)


def test_step_counts_include_every_node_of_a_tree() -> None:
    tree = [ReplayedDraft(2, 7, 1), ReplayedDraft(2, 7, 0), ReplayedDraft(2, 7, 2)]
    found = count_steps(tree, 2)
    assert (found.steps, found.drafted, found.accepted) == (2, 7, 1)


def test_mean_accepted_len_is_weighted_by_token_and_by_request() -> None:
    found = AcceptanceStats((StepCounts(1, 4, 4), StepCounts(9, 36, 0)), ("a", "b"))
    assert found.token_weighted.value == pytest.approx(1.4)
    assert found.request_weighted.value == pytest.approx(3.0)
    assert found.for_category("a").token_weighted.value == 5.0
    assert found.token_weighted.low < 1.4 < found.token_weighted.high


def test_single_text_has_the_widest_interval_and_no_recommendation() -> None:
    """A single text gives a wide interval, even if its drafts were fully accepted."""
    cost = {1: {0: 1.0, 2: 1.0}}
    two = measured("ngram", {2: 200}, cost)
    one = replace(two, acceptance={2: AcceptanceStats(two.acceptance[2].texts[:1], ("",))})
    for mean in (one.acceptance[2].token_weighted, one.acceptance[2].request_weighted):
        assert (mean.value, mean.low, mean.high) == (3.0, 1.0, 3.0)
    assert (rate_candidate(one, 1), rate_candidate(two, 1)) == ("too slow", "pays")
    assert (recommend([one], 1).candidate, recommend([two], 1).candidate) == (None, two.candidate)
    tree = AcceptanceStats((StepCounts(2, 14, 1, (1, 0), (2, 1)),), ("",)).token_weighted
    assert (tree.value, tree.low, tree.high) == (1.5, 1.0, 2.5)


def test_schedule_has_the_fastest_length_of_each_batch() -> None:
    """Acceptance saturates and steps become slower at higher concurrency; 2 and 8 are interpolated."""
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


def test_schedule_changes_length_only_for_a_clear_gain() -> None:
    """At concurrency 4, one token less is 1.02 times as fast, at 16 it is 1.09 times."""
    cheap, even, dear = {0: 1.0, 1: 1.0, 2: 1.0}, {0: 1.0, 1: 1.2, 2: 1.37}, {0: 1.0, 1: 1.3, 2: 1.58}
    found = measured("ngram", {1: 60, 2: 79}, {1: cheap, 4: even, 16: dear})
    gains = [found.speedup(batch, 1).expected.value / found.speedup(batch, 2).expected.value for batch in (4, 16)]
    assert [round(gain, 2) for gain in gains] == [1.02, 1.09]
    assert recommend([found], 1).schedule == ((4, 2), (16, 1))


def test_schedule_drops_a_length_below_the_minimum_speedup() -> None:
    """At concurrency 4, one token is 1.07 times as fast as the target alone, two are 1.04 times."""
    found = measured("ngram", {1: 60, 2: 79}, {1: {0: 1.0, 1: 1.0, 2: 1.0}, 4: {0: 1.0, 1: 1.5, 2: 1.72}})
    assert [round(found.speedup(4, length).expected.value, 2) for length in (1, 2)] == [1.07, 1.04]
    assert recommend([found], 1).schedule == ((2, 2), (4, 1))


def test_higher_batches_need_a_larger_speedup_than_the_lowest() -> None:
    """One token is 1.04 times as fast, which is enough at the lowest concurrency but too uncertain at higher ones."""
    cheap, even = {0: 1.0, 1: 1.0}, {0: 1.0, 1: 1.54}
    found = measured("ngram", {1: 60}, {1: even, 4: even})
    assert round(found.best(4).expected.value, 2) == 1.04
    assert recommend([found], 1).schedule == ((1, 1),)
    assert recommend([measured("ngram", {1: 60}, {1: cheap, 4: even})], 1).schedule == ((2, 1),)


def test_schedule_continues_where_an_idle_drafter_would_be_slower() -> None:
    """At concurrency 4 both have a speed-up of 0.97, one of them because its drafter also prefills."""
    cheap = {0: 1.0, 1: 1.0, 2: 1.0}
    slow = measured("draft_target", {1: 60, 2: 80}, {1: cheap, 4: {0: 1.0, 1: 1.85, 2: 1.86}})
    assert (round(slow.best(4).expected.value, 2), slow.idle(4)) == (0.97, 1.0)
    assert recommend([slow], 1).schedule == ((2, 2),)
    reading = measured("draft_target", {1: 60, 2: 80}, {1: cheap, 4: {0: 1.0, 1: 1.66, 2: 1.68}})
    reading = replace(reading, prefills={1: (1.0, 1.0), 4: (0.0, 1.0)}, response_len=11)
    assert (round(reading.best(4).expected.value, 2), round(reading.idle(4), 2)) == (0.97, 0.91)
    assert recommend([reading], 1).schedule == ()  # one length for all


def test_single_length_for_all_batches_has_no_schedule() -> None:
    flat = {0: 1.0, 1: 1.0, 2: 1.0}
    found = recommend([measured("ngram", {1: 50, 2: 80}, {1: flat, 4: flat})], 4)
    assert (found.schedule, found.draft_len) == ((), 2)


def test_gain_at_high_batches_is_used_if_lower_batches_are_not_slower() -> None:
    """A schedule never drafts more at higher concurrency; at 1, 2 and 4 the speed-up is 1.01."""
    even, cheap = {0: 1.0, 1: 1.6, 2: 1.78}, {0: 1.0, 1: 1.0, 2: 1.0}
    found = recommend(
        [measured("ngram", {1: 60, 2: 80}, {1: even, 4: even, 8: cheap, 64: {0: 1.0, 1: 4.0, 2: 5.0}})], 8
    )
    assert (found.draft_len, found.schedule) == (2, ((16, 2),))
    assert found.speedup == pytest.approx(1.8)


def test_gain_at_high_batches_is_not_recommended_if_lower_batches_are_slower() -> None:
    """Without a schedule it would also draft at 64, and a schedule that drafts at 8 also drafts at 1."""
    dear, cheap = {0: 1.0, 1: 1.8, 2: 2.0}, {0: 1.0, 1: 1.0, 2: 1.0}
    found = recommend([measured("ngram", {1: 60, 2: 80}, {1: dear, 8: cheap, 64: dear})], 8)
    assert (found.candidate, found.schedule, found.speedup) == (None, (), 1.0)
    assert found.why == (
        "the best candidate, ngram, is expected to be 1.80 (1.80 to 1.80) times as fast with 8 concurrent requests, "
        "but lower concurrencies would need the same draft length, and with one request at a time it is "
        "0.90 times as fast"
    )


def test_high_batch_uses_a_shorter_length_that_is_not_slower_at_low_batches() -> None:
    """Two tokens are 1.8 times as fast at concurrency 8 and 0.9 times at 1; one token is 1.6 and 1.07 times."""
    cost = {1: {0: 1.0, 1: 1.5, 2: 2.0}, 8: {0: 1.0, 1: 1.0, 2: 1.0}}
    found = recommend([measured("ngram", {1: 60, 2: 80}, cost)], 8)
    assert (found.draft_len, found.schedule) == (1, ())
    assert found.speedup == pytest.approx(1.6)
    assert "drafting 1 tokens" in found.why


def test_reported_speedup_is_of_the_scheduled_length() -> None:
    """At concurrency 4, one token is 1.02 times as fast as the two that the schedule keeps."""
    even = {0: 1.0, 1: 1.2, 2: 1.37}
    slow = {0: 1.0, 1: 1.5, 2: 1.5}
    candidate = measured("ngram", {1: 60, 2: 79}, {1: slow, 4: even})
    found = recommend([candidate], 4)
    assert (candidate.best(4).draft_len, found.draft_len, found.schedule) == (1, 2, ())
    assert found.speedup == candidate.speedup(4, 2).expected.value < candidate.best(4).expected.value


def test_uncertain_speedup_at_high_batch_is_not_recommended() -> None:
    """At concurrency 4 the speed-up is 1.04, which is too uncertain for a schedule."""
    found = measured("ngram", {1: 60}, {1: {0: 1.0, 1: 1.0}, 4: {0: 1.0, 1: 1.54}})
    assert found.best(4).expected.low > 1.02
    alone = recommend([found], 4)
    assert (alone.candidate, alone.speedup, alone.schedule) == (None, 1.0, ())
    assert alone.why.endswith("with 4 concurrent requests, but an expected speed-up below 1.05 is uncertain")
    assert recommend([found], 1).schedule == ((2, 1),)


def test_unschedulable_candidate_yields_to_a_schedulable_one() -> None:
    cheap, dear = {0: 1.0, 1: 1.0}, {0: 1.0, 1: 2.0}
    fast = measured("draft_target", {1: 80}, {1: dear, 8: cheap})
    good = measured("ngram", {1: 60}, {1: cheap, 8: cheap})
    found = recommend([fast, good], 8)
    assert found.candidate is good.candidate
    assert "the next best is draft_target, 1.80 times, but lower concurrencies" in found.why


def test_method_without_draft_len_has_no_schedule() -> None:
    """`check` rejects a schedule for it, so it is recommended only if it is never slower."""
    cheap, dear = {0: 1.0, 3: 1.0}, {0: 1.0, 3: 2.0}
    plain = ProfileCandidate("medusa", None, {}, False, Path())
    good = replace(measured("medusa", {3: 60}, {1: cheap, 8: {0: 1.0, 3: 1.55}}), candidate=plain)
    found = recommend([good], 1)
    assert (found.candidate, found.schedule, found.speculation) == (plain, (), {"method": "medusa"})
    alone = recommend([replace(measured("medusa", {3: 60}, {1: cheap, 8: dear}), candidate=plain)], 1)
    assert alone.candidate is None
    assert alone.why.endswith("it drafts at every concurrency, and with 8 concurrent requests it is 0.80 times as fast")


@pytest.mark.parametrize("batch", [1, 4, 16, 64])
def test_recommendation_is_never_slower_than_the_target_alone(batch: int) -> None:
    """With random step times, the expected speed-up is at least 1 at every concurrency, and lengths never grow."""
    draws = np.random.default_rng(batch)
    recommended = 0
    for _ in range(200):
        cost = {rows: {0: 1.0} | {n: float(each) for n, each in zip((1, 2, 3), draws.uniform(1, 3, 3), strict=True)}
                for rows in (1, 4, 16, 64)}  # fmt: skip
        found = measured("ngram", {1: 70, 2: 120, 3: 150}, cost)
        best = recommend([found], batch)
        recommended += best.candidate is not None
        pairs = best.schedule or ((64, best.draft_len),) * (best.candidate is not None)
        drafted = {rows: next((length for most, length in pairs if rows <= most), 0) for rows in cost}
        speeds = {
            rows: found.speedup(rows, length).expected.value if length else 1.0 for rows, length in drafted.items()
        }
        assert min(speeds.values()) >= 1.0
        assert speeds[batch] == best.speedup
        assert list(drafted.values()) == sorted(drafted.values(), reverse=True)
        assert bool(drafted[batch]) == (best.candidate is not None)
        assert not pairs or best.draft_len == pairs[0][1], "a recipe's schedule begins with its draft_len"
    assert recommended > 20


def test_shorter_of_two_equal_lengths_is_chosen() -> None:
    even = {0: 1.0, 1: 1.0, 2: 1.5}
    best = measured("ngram", {1: 50, 2: 125}, {1: even}).best(1)
    assert (best.draft_len, best.expected.value) == (1, 1.5)


@pytest.mark.parametrize(("longer_s", "taken"), [(1.015, 2), (1.035, 1)])
def test_longer_draft_is_chosen_only_for_a_gain_above_noise(longer_s: float, taken: int) -> None:
    """Two tokens are expected to be 3.5 % or 1.5 % faster than one."""
    found = measured("ngram", {1: 500, 2: 576}, {1: {0: 1.0, 1: 1.0, 2: longer_s}}, steps=1000)
    assert found.best(1).draft_len == taken


def test_better_draft_is_recommended_and_none_if_none_pays() -> None:
    cost = {1: {0: 1.0, 4: 2.0}}
    good, bad = measured("draft_target", {4: 300}, cost), measured("ngram", {4: 50}, cost)
    found = recommend([bad, good], 1)
    assert found.candidate is good.candidate
    assert (rate_candidate(good, 1), rate_candidate(bad, 1)) == ("pays", "harmful")
    alone = recommend([bad], 1)
    assert (alone.candidate, alone.speculation, alone.speedup) == (None, {"method": "none"}, 1.0)
    assert recommend([], 1).speculation == {"method": "none"}


@pytest.mark.parametrize(
    ("accepted", "step_s", "word"),
    [(196, 3.0, "harmful"), (196, 1.1, "train"), (220, 1.1, "train"), (260, 1.1, "pays"), (260, 4.0, "too slow")],
)
def test_candidate_verdict_depends_on_acceptance_and_step_time(accepted: int, step_s: float, word: str) -> None:
    found = measured("ngram", {4: accepted}, {1: {0: 1.0, 4: step_s}})
    assert rate_candidate(found, 1) == word
    assert (recommend([found], 1).candidate is None) == (word in ("harmful", "too slow"))


def test_step_time_between_measured_lengths_is_interpolated() -> None:
    found = measured("ngram", {1: 10, 2: 20, 3: 30}, {1: {0: 1.0, 1: 2.0, 3: 4.0}})
    assert found.step_seconds(1, 2) == 3.0


def test_least_seconds_never_exceed_longer_drafts_or_larger_batches() -> None:
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


def test_prefill_time_is_interpolated_between_batches() -> None:
    """At concurrency 3, steps take 2 s and prefills 6 s for the 11 tokens after the first."""
    even = {0: 1.0, 1: 1.0}
    found = measured("ngram", {1: 100}, {1: even, 5: {0: 3.0, 1: 3.0}})
    found = replace(found, prefills={1: (2.0, 2.0), 5: (10.0, 10.0)}, response_len=12.0)
    assert found.best(3).expected.value == pytest.approx((2 + 6 / 11) / (2 / 2 + 6 / 11))


def test_target_alone_is_recommended_with_the_reason() -> None:
    """A few very different texts give a speed-up of 1.25 with an interval that starts at 1.0."""
    wide = AcceptanceStats((StepCounts(10, 10, 0), StepCounts(10, 10, 9), StepCounts(10, 10, 0)), ("",) * 3)
    found = replace(measured("draft_target", {1: 60}, {1: {0: 1.0, 1: 1.03}}), acceptance={1: wide})
    best = found.best(1).expected
    assert best.low < 1.02 < best.value
    alone = recommend([found], 1)
    assert alone.candidate is None
    assert "the lower end of that interval is below 1.02, so it may not be faster" in alone.why
    found_verdict = decide(alone.proposal)
    assert found_verdict.decision == "do_not_ship"
    beginning = "Do not speculate: the best option tried, draft_target, is expected to be"
    assert found_verdict.text.startswith(f"{beginning} {best.value:.2f} times")
    assert found_verdict.text.endswith("so it may not be faster; use the target alone.")
    slow = recommend([measured("ngram", {1: 10}, {1: {0: 1.0, 1: 1.09}})], 1)
    assert slow.candidate is None
    assert "but that is less than 1.02 times, which is within noise" in slow.why
