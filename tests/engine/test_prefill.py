# SPDX-License-Identifier: Apache-2.0
"""Prompts that arrive together: grouped into passes of similar length, and all finished even if a pass fails."""

from __future__ import annotations

from pathlib import Path
from queue import Queue

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests._support.tiny import convert, make_llama
from trtspec.engine.engine import Engine
from trtspec.engine.generation.request import EngineRequest
from trtspec.engine.prefill import PASS_TOKENS, group_by_length
from trtspec.engine.settings import EngineSettings


def cost(lens: list[int], passes: list[tuple[int, int]]) -> int:
    return sum(PASS_TOKENS + (last - first) * max(lens[first:last]) for first, last in passes)


def ways(count: int) -> list[list[tuple[int, int]]]:
    """Return all divisions of `count` texts into passes."""
    if not count:
        return [[]]
    return [[*before, (first, count)] for first in range(count) for before in ways(first)]


@given(st.lists(st.integers(1, 400), max_size=7).map(sorted))
def test_grouping_by_length_has_the_minimum_cost(lens: list[int]) -> None:
    passes = group_by_length(lens)
    assert [number for first, last in passes for number in range(first, last)] == list(range(len(lens)))
    assert cost(lens, passes) == min(cost(lens, way) for way in ways(len(lens)))


def test_similar_lengths_share_a_pass_and_a_long_prompt_gets_a_separate_one() -> None:
    assert group_by_length([20, 21, 22, 23]) == [(0, 4)]
    assert group_by_length([10, 11, 12, 300]) == [(0, 3), (3, 4)]
    assert group_by_length([]) == []


@pytest.mark.integration
def test_failure_in_one_pass_is_reported_to_requests_of_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = convert(make_llama(tmp_path / "hf"), tmp_path / "target")
    engine = Engine(target, None, EngineSettings("none", 0, max_seq_len=256, max_batch_size=4, device="cpu"))
    monkeypatch.setattr(engine.speculator, "prefill", lambda *given: 1 // 0)
    told: Queue[str | None] = Queue()
    with engine._changed:  # so that they arrive together
        for length in (2, 3, 200):
            engine.submit(EngineRequest((1,) * length, 4), lambda update: told.put(update.error))
    errors = [told.get(timeout=30) for _ in range(3)]
    assert all(error and error.startswith("the engine failed") for error in errors)
    engine.close()
