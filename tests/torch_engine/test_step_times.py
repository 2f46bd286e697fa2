# SPDX-License-Identifier: Apache-2.0
"""What of the seconds of measured steps counts."""

from __future__ import annotations

from typing import Any

import pytest

from trtspec.torch_engine import step_times


def test_the_least_counts_and_no_more_than_longer_drafts_took(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first round, which does what is done only once, is not measured."""
    took = {
        (1, 0): [9.0, 1.0, 1.5], (1, 2): [9.0, 4.0, 5.0], (1, 4): [9.0, 3.0, 6.0],
        (4, 0): [0.1, 2.0, 2.0], (4, 2): [0.1, 7.0, 5.0], (4, 4): [0.1, 6.0, 8.0],
    }  # fmt: skip
    left = {case: iter(seconds) for case, seconds in took.items()}
    monkeypatch.setattr(step_times, "_begun", lambda speculator, prompts, case, *sizes: case)
    monkeypatch.setattr(step_times, "_run", lambda speculator, batch, steps: next(left[batch]))
    engine: Any = None
    found = step_times.step_times(engine, [(1,)], [*took], steps=1, rounds=2, max_tokens=8)
    assert found == {(1, 0): 1.0, (1, 2): 3.0, (1, 4): 3.0, (4, 0): 2.0, (4, 2): 5.0, (4, 4): 6.0}
