# SPDX-License-Identifier: Apache-2.0
"""Timing of steps: the measured steps and their texts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from trtspec.core.errors import TrtspecError
from trtspec.engine.generation.request_state import DecodingStep, RunningRequest
from trtspec.engine.measurement import step_times

STEPS, ROUNDS = 3, 2


@dataclass
class Accepting:
    """A speculator that accepts all its drafts and records its calls."""

    max_seq_len: int
    prefills: list[list[int]] = field(default_factory=list)
    steps: Counter[tuple[int, int]] = field(default_factory=Counter)
    longest: int = 0

    @property
    def settings(self) -> Any:
        return SimpleNamespace(max_seq_len=self.max_seq_len)

    def prefill(self, batch: Sequence[RunningRequest], first_row: int, max_tokens: int) -> list[DecodingStep]:
        self.prefills.append([len(running.text) for running in batch])
        return [DecodingStep(0, [], 1) for _ in batch]

    def step(self, batch: Sequence[RunningRequest]) -> list[DecodingStep]:
        drafted = [running.draft_len(10) for running in batch]
        assert len({*drafted}) == 1
        self.steps[len(batch), drafted[0]] += 1
        self.longest = max(self.longest, *(len(running.text) + drafted[0] + 1 for running in batch))
        return [DecodingStep(most, [1] * most, 1) for most in drafted]


def times(engine: Any, prompt: int = 5, said: int = 24, least_s: float = 0) -> dict[tuple[int, int], list[float]]:
    texts = [((1,) * prompt, (1,) * said)]
    return step_times(engine, texts, [1, 4], [0, 2, 5], steps=STEPS, least_s=least_s, rounds=ROUNDS, max_tokens=8)


CASES = [(rows, draft_len) for rows in (1, 4) for draft_len in (0, 2, 5)]


def test_one_round_per_case_and_one_step_per_round_are_not_timed() -> None:
    engine = Accepting(100)
    found = times(engine)
    assert {case: len(samples) for case, samples in found.items()} == dict.fromkeys(CASES, ROUNDS)
    assert engine.steps == dict.fromkeys(CASES, (ROUNDS + 1) * (STEPS + 1))


def test_rows_are_spread_over_the_positions_of_their_answers() -> None:
    """Once the growth of texts is known, the last row ends near the end of its answer."""
    engine = Accepting(200)
    times(engine, prompt=5, said=40)
    grown = {0: 1 + 4, 2: 1 + 12, 5: 1 + 24}
    begun = {(rows, each): [5 + (2 * row + 1) * (40 - new) // (2 * rows) for row in range(rows)]
             for rows in (1, 4) for each, new in grown.items()}  # fmt: skip
    assert engine.prefills[len(CASES) :] == [begun[case] for case in CASES] * ROUNDS


@pytest.mark.parametrize("max_seq_len", [27, 30, 50])
def test_long_texts_are_truncated_at_the_start(max_seq_len: int) -> None:
    """No step drafts less than its draft length because a text ends."""
    engine = Accepting(max_seq_len)
    found = times(engine, prompt=40)
    assert engine.steps == dict.fromkeys(found, (ROUNDS + 1) * (STEPS + 1))
    assert engine.longest <= max_seq_len


@pytest.mark.parametrize(("said", "most"), [(18, 18), (23, 23), (40, 24)])
def test_short_steps_are_timed_for_at_most_the_length_of_an_answer(said: int, most: int) -> None:
    """All steps are shorter than required: after the first round each length covers as many tokens as answers have."""
    engine = Accepting(100)
    times(engine, said=said, least_s=60.0)
    timed = {draft_len: max(STEPS + 1, most // (draft_len + 1)) for draft_len in (0, 2, 5)}
    assert engine.steps == {(rows, each): STEPS + 1 + ROUNDS * timed[each] for rows, each in CASES}


def test_max_seq_len_without_room_for_new_tokens_is_an_error() -> None:
    with pytest.raises(TrtspecError, match="leaves no room for 24 new tokens"):
        times(Accepting(26))
