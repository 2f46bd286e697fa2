# SPDX-License-Identifier: Apache-2.0
"""Aggregation of runs in the benchmark of profiles."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from benchmarks.profiles import ROUNDS, Schedule, Stretches, rounds, tokens_per_s


def test_stretch_time_is_that_of_its_fastest_run() -> None:
    """Each run of the second arm is slow in a different stretch; the first arm has constant speed."""
    rounds_asked: list[int] = []

    def engine(arms: Sequence[Schedule], many: int, number: int) -> list[Stretches]:
        assert many == 4
        rounds_asked.append(number)
        slowed = [(10, 1.0 if stretch == number else 0.1) for stretch in range(ROUNDS + 1)]
        return [[(10, 0.1)] * (ROUNDS + 1), slowed][: len(arms)]

    assert rounds(engine, [((1, 0),), ((1, 1),)], 4) == pytest.approx([100.0, 100.0])
    assert rounds_asked == [*range(ROUNDS)]


def test_runs_with_different_tokens_are_rejected() -> None:
    with pytest.raises(ValueError, match="differ in their tokens"):
        tokens_per_s([[(3, 0.1), (2, 0.1)], [(2, 0.1), (3, 0.1)]])
