# SPDX-License-Identifier: Apache-2.0
"""Which steps are timed, and from how many prefills."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from trtspec.errors import TrtspecError
from trtspec.generation.running import Progress, Running
from trtspec.torch_engine.step_times import step_times

STEPS, ROUNDS = 3, 2


@dataclass
class Accepting:
    """A speculator that accepts all it drafts, and notes what it was asked for."""

    max_seq_len: int
    prefills: list[int] = field(default_factory=list)
    steps: Counter[tuple[int, int]] = field(default_factory=Counter)
    longest: int = 0

    @property
    def settings(self) -> Any:
        return SimpleNamespace(max_seq_len=self.max_seq_len)

    def prefill(self, batch: Sequence[Running], first_row: int, max_tokens: int) -> list[Progress]:
        self.prefills.append(len(batch))
        return [Progress(0, [], 1) for _ in batch]

    def step(self, batch: Sequence[Running]) -> list[Progress]:
        drafted = [running.draft_len(10) for running in batch]
        assert len({*drafted}) == 1
        self.steps[len(batch), drafted[0]] += 1
        self.longest = max(self.longest, *(len(running.text) + drafted[0] + 1 for running in batch))
        return [Progress(most, [1] * most, 1) for most in drafted]


def times(engine: Any, prompt: int = 5) -> dict[tuple[int, int], list[float]]:
    prompts = [(1,) * prompt]
    return step_times(engine, prompts, [1, 4], [0, 2, 5], steps=STEPS, rounds=ROUNDS, max_tokens=8, answer_len=90)


def test_one_prefill_does_for_all_lengths() -> None:
    """Of each case one round, and one step of every round, is not timed."""
    engine = Accepting(100)
    found = times(engine)
    assert {case: len(samples) for case, samples in found.items()} == {
        (rows, draft_len): ROUNDS for rows in (1, 4) for draft_len in (0, 2, 5)
    }
    assert engine.prefills == [1, 4] * (ROUNDS + 1)
    assert engine.steps == dict.fromkeys(found, (ROUNDS + 1) * (STEPS + 1))


@pytest.mark.parametrize("max_seq_len", [27, 30, 50])
def test_where_texts_grow_too_long_they_begin_anew(max_seq_len: int) -> None:
    """No step drafts less than it is to because a text ends."""
    engine = Accepting(max_seq_len)
    found = times(engine, prompt=40)
    assert len(engine.prefills) > 2 * (ROUNDS + 1)
    assert engine.steps == dict.fromkeys(found, (ROUNDS + 1) * (STEPS + 1))
    assert engine.longest <= max_seq_len


@pytest.mark.parametrize(("answer_len", "prefills"), [(40, 1), (39, 2), (24, 2), (12, 3)])
def test_texts_grow_no_longer_than_answers(answer_len: int, prefills: int) -> None:
    """Four steps of each length make 4, 12 and 24 tokens, behind the prefill's first one."""
    engine = Accepting(100)
    step_times(engine, [(1,) * 5], [1], [0, 2, 5], steps=STEPS, rounds=0, max_tokens=8, answer_len=answer_len + 1)
    assert len(engine.prefills) == prefills
    assert engine.longest <= 5 + max(answer_len + 1, 1 + 24)


def test_an_engine_that_is_too_short_is_told() -> None:
    with pytest.raises(TrtspecError, match="leaves no room for 24 new tokens"):
        times(Accepting(26))
