# SPDX-License-Identifier: Apache-2.0
"""What the benchmark of profiles makes of runs."""

from __future__ import annotations

import pytest

from benchmarks.profiles import ROUNDS, Schedule, Stretches, rounds, tokens_per_s


def test_each_stretch_counts_by_its_fastest_run() -> None:
    """Each run of the second arm is slowed in another stretch, the first is always as fast."""
    asked: list[Schedule] = []

    def engine(schedule: Schedule, many: int) -> Stretches:
        assert many == 4
        asked.append(schedule)
        slowed = asked.count(schedule) if schedule == other else -1
        return [(10, 1.0 if stretch == slowed else 0.1) for stretch in range(ROUNDS + 2)]

    steady, other = ((1, 0),), ((1, 1),)
    assert rounds(engine, [steady, other], 4) == pytest.approx([100.0, 100.0])
    assert asked[:4] == [steady, other, other, steady]
    assert len(asked) == 2 * ROUNDS


def test_runs_that_did_not_do_the_same_are_no_measurement() -> None:
    with pytest.raises(ValueError, match="other tokens"):
        tokens_per_s([[(3, 0.1), (2, 0.1)], [(2, 0.1), (3, 0.1)]])
