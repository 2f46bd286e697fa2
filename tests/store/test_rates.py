# SPDX-License-Identifier: Apache-2.0
"""A step's time is estimated from the median of earlier steps of its kind on this machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trtspec.store.records import LEAST_BYTES, StepRates
from trtspec.store.step import Inputs, Step, StepProgress


@dataclass(frozen=True)
class Move(Step):
    VERSION = 1
    size: int
    name = "move"
    total_bytes = property(lambda self: self.size)

    def run(self, out: Path, inputs: Inputs, progress: StepProgress) -> None: ...


@dataclass(frozen=True)
class Other(Move): ...


def test_estimate_is_the_median_of_the_newest_rates(tmp_path: Path) -> None:
    rates, step = StepRates(tmp_path), Move(LEAST_BYTES)
    assert rates.estimated_seconds(step) is None
    for seconds in (900.0, 1.0, 2.0, 3.0, 50.0, 60.0):  # the first is dropped
        rates.note(step, seconds)
    assert StepRates(tmp_path).estimated_seconds(Move(2 * LEAST_BYTES)) == 6.0
    assert rates.estimated_seconds(Other(LEAST_BYTES)) is None


def test_small_steps_are_not_recorded(tmp_path: Path) -> None:
    rates = StepRates(tmp_path)
    rates.note(Move(LEAST_BYTES - 1), 1.0)
    assert not (tmp_path / "rates.json").exists()


def test_damaged_rates_file_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "rates.json").write_text('{"rates": {"Move": [1]}}')
    assert StepRates(tmp_path).estimated_seconds(Move(LEAST_BYTES)) is None
