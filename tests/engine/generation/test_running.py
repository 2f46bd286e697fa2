# SPDX-License-Identifier: Apache-2.0
"""A running request without a model: stop conditions, updates and random numbers."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests._support.tiny import make_tokenizer
from trtspec.checkpoints.tokenizer import Tokenizer
from trtspec.engine.generation.request import EngineRequest, SamplingOptions, Scores, Stats, Update
from trtspec.engine.generation.request_state import DecodingStep, RunningRequest


@cache
def tokenizer() -> Tokenizer:
    return Tokenizer(make_tokenizer(Path(mkdtemp())))


def running(max_new: int = 10, **options: object) -> tuple[RunningRequest, list[Update]]:
    """Return a request after the prompt [7, 8], and the list of its updates."""
    updates: list[Update] = []
    request = EngineRequest((7, 8), max_new, **options)  # type: ignore[arg-type]
    return RunningRequest(request, updates.append, tokenizer()), updates


def test_request_ends_at_its_length() -> None:
    request, _ = running(4)
    assert request.begin(DecodingStep(0, [], 1)) is None
    assert request.advance(DecodingStep(2, [2], 4)) is None
    assert request.text == [7, 8, 1, 2, 4]
    assert request.advance(DecodingStep(2, [5, 6], 9)) == "length"
    assert request.text == [7, 8, 1, 2, 4, 5]
    assert request.stats == Stats(
        prompt_tokens=2, new_tokens=4, drafted=4, accepted=3, steps=2, accepted_by_position=(2, 1), draft_steps=2
    )
    assert (request.stats.acceptance_rate, request.stats.mean_accepted_len) == (0.75, 2.5)


def test_request_ends_before_an_end_id() -> None:
    request, _ = running(end_ids=(0, 3))
    request.begin(DecodingStep(0, [], 1))
    assert request.advance(DecodingStep(3, [2, 3, 4], 5)) == "end_id"
    assert request.text == [7, 8, 1, 2]
    assert running(end_ids=(1,))[0].begin(DecodingStep(0, [], 1)) == "end_id"
    assert (
        running(2, end_ids=(3,))[0].advance(DecodingStep(2, [4, 5], 3)) == "length"
    )  # tokens beyond the length are dropped


def test_first_of_end_id_and_stop_text_ends_the_request() -> None:
    ids = tokenizer().encode("ab")
    request, _ = running(end_ids=(0,), stop=("b",))
    assert request.advance(DecodingStep(2, [ids[0], 0], ids[1])) == "end_id"
    request, _ = running(end_ids=(0,), stop=("b",))
    assert request.advance(DecodingStep(2, [*ids], 0)) == "stop"


@settings(deadline=None)
@given(st.text(min_size=1, max_size=12), st.text("ab京", min_size=1, max_size=3), st.integers(1, 5))
def test_stop_text_ends_the_request_with_the_token_that_completes_it(before: str, stop: str, step: int) -> None:
    """The oracle decodes the whole text after every token."""
    ids = tokenizer().encode(f"{before}{stop}ab")
    expected = next(end for end in range(1, len(ids) + 1) if stop in tokenizer().decode(ids[:end]))
    request, _ = running(len(ids) + 9, stop=("never", stop))
    reason = None
    for start in range(0, len(ids), step):
        *chain, last = ids[start : start + step]
        if reason := request.advance(DecodingStep(len(chain), chain, last)):
            break
    assert reason == "stop"
    assert request.text[2:] == ids[:expected]


def test_updates_delay_incomplete_characters() -> None:
    request, updates = running()
    first, second, third = tokenizer().encode("京")
    for token in (first, second):
        request.begin(DecodingStep(0, [], token))
        request.update(None)
    assert updates == []
    request.begin(DecodingStep(0, [], third))
    request.update(None)
    assert [update.new_ids for update in updates] == [(first, second, third)]
    request.begin(DecodingStep(0, [], first))
    request.update("length")
    assert (updates[-1].new_ids, updates[-1].finish_reason) == ((first,), "length")


def test_final_update_is_sent_without_new_tokens() -> None:
    request, updates = running()
    request.update("cancelled", "gone")
    assert updates == [Update((), "cancelled", Stats(prompt_tokens=2), "gone")]


@pytest.mark.parametrize(
    ("max_new", "own", "expected"), [(10, None, 5), (10, 3, 3), (10, 0, 0), (4, None, 3), (1, None, 0), (4, 9, 3)]
)
def test_draft_len_is_limited_by_the_request_and_its_remaining_tokens(
    max_new: int, own: int | None, expected: int
) -> None:
    assert running(max_new, draft_len=own)[0].draft_len(5) == expected


def test_uniforms_depend_only_on_the_seed_and_the_count_drawn_before() -> None:
    def drawn(seed: int, lens: list[int]) -> list[float]:
        request, _ = running(sampling=SamplingOptions(temperature=1.0, seed=seed))
        return np.concatenate([request.uniforms(length) for length in lens]).tolist()

    assert drawn(1, [0, 5, 2]) == drawn(1, [7])
    assert len(drawn(1, [0, 5, 2])) == 7
    assert drawn(1, [5]) != drawn(2, [5])
    assert all(0 <= number < 1 for number in drawn(3, [20]))


def test_greedy_requests_draw_no_random_numbers() -> None:
    for sampling in (SamplingOptions(), SamplingOptions(temperature=1.0, top_k=1)):
        request, _ = running(sampling=sampling)
        assert not request.samples
        assert request.uniforms(5).tolist() == [0.0] * 5


def test_external_draft_is_truncated_to_leave_room_for_a_target_token() -> None:
    assert running(3, draft_ids=(1, 2, 3, 4))[0].external_draft == (1, 2)
    assert running(9, draft_ids=(1, 2))[0].external_draft == (1, 2)
    assert running(1, draft_ids=(1, 2))[0].external_draft == ()


def test_prefill_that_verifies_an_external_draft_is_the_only_step() -> None:
    request, _ = running(draft_ids=(1, 2), end_ids=(9,))
    assert request.begin(DecodingStep(2, [1], 5)) == "length"
    assert request.text == [7, 8, 1, 5]
    assert request.stats == Stats(
        prompt_tokens=2, new_tokens=2, drafted=2, accepted=1, steps=1, accepted_by_position=(1,), draft_steps=1
    )
    assert running(draft_ids=(1, 2), end_ids=(9,))[0].begin(DecodingStep(2, [1], 9)) == "end_id"


def scores_of(*tokens: int) -> Scores:
    """Return rows that identify their token."""
    return Scores(np.array([[token, 0.5] for token in tokens], np.float32), -np.array(tokens, np.float32))


def test_logits_are_reported_with_their_tokens() -> None:
    """Logits are held back with incomplete characters, and dropped with tokens after an end."""
    request, updates = running(max_new=5, end_ids=(0,), return_logits=True)
    first, second, third = tokenizer().encode("京")
    request.begin(DecodingStep(0, [], first, scores_of(first)))
    request.update(None)
    request.advance(DecodingStep(1, [second], third, scores_of(second, third)))
    request.update(None)
    assert request.advance(DecodingStep(2, [9, 0], 8, scores_of(9, 0, 8))) == "end_id"
    request.update("end_id")
    assert [update.new_ids for update in updates] == [(first, second, third), (9,)]
    assert [update.scores.logits.tolist() for update in updates] == [
        scores_of(first, second, third).logits.tolist(),
        scores_of(9).logits.tolist(),
    ]
    assert [update.scores.log_probs.tolist() for update in updates] == [[-first, -second, -third], [-9]]


def test_logits_without_tokens_have_zero_rows() -> None:
    request, updates = running(end_ids=(0,), return_logits=True)
    request.update(request.begin(DecodingStep(0, [], 0, scores_of(0))))
    assert updates[0].scores.logits.shape == (0, 2)


def test_openmp_spin_count_has_a_default_that_the_environment_overrides() -> None:
    code = "import os, trtspec.engine; print(os.environ['GOMP_SPINCOUNT'])"
    for environment, expected in (({}, "10000"), ({"GOMP_SPINCOUNT": "7"}, "7")):
        run = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True, timeout=300
        )
        assert run.stdout.strip() == expected


@given(st.lists(st.integers(0, 5), max_size=8))
def test_accepted_counts_by_position_sum_to_the_accepted_tokens(accepted: list[int]) -> None:
    request, _ = running(100)
    for length in accepted:
        request.advance(DecodingStep(5, [1] * length, 2))
    by_position = request.stats.accepted_by_position
    assert by_position == tuple(sum(length > place for length in accepted) for place in range(max(accepted, default=0)))
    assert sum(by_position) == request.stats.accepted


def test_stats_addition_sums_accepted_counts_by_position() -> None:
    both = Stats(1, 2, 3, 4, 5, (3, 1)) + Stats(1, 1, 1, 1, 1, (1,))
    assert both == Stats(2, 3, 4, 5, 6, (4, 1))


def test_update_reports_the_queue_time_of_an_admitted_request() -> None:
    request, updates = running()
    request.update("cancelled")
    request.admit()
    request.update("length")
    assert updates[0].queue_s is None
    assert updates[1].queue_s is not None
    assert 0 <= updates[1].queue_s < 60
