# SPDX-License-Identifier: Apache-2.0
"""Processes that take turns: never two at the same time, and clocks without the others' turns."""

from __future__ import annotations

import time
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import ExitStack
from itertools import pairwise
from multiprocessing import get_context

import pytest

from benchmarks import turns
from benchmarks.turns import Ring, Turn, join

SLICE_S, MARGIN_S = 0.02, 0.4


def run(place: int, runners: int, slices: int) -> tuple[float, list[tuple[float, float]]]:
    """Return the seconds by the turn's clock, and each slice's start and end by the machine's clock."""
    turns.TURN_S = 0.05
    worked = []
    with Turn(place, runners) as turn:
        first = turn.clock()
        for _ in range(slices):
            began = time.monotonic()
            time.sleep(SLICE_S)
            worked.append((began, time.monotonic()))
            if place == 1 and slices == 1:
                raise ValueError("an arm that fails")
            last = turn.clock()
    return last - first, worked


def asked(stack: ExitStack, slices: list[int]) -> list[Future[tuple[float, list[tuple[float, float]]]]]:
    context = get_context("spawn")
    ring = Ring.make(context, len(slices) + 1)
    pools = [stack.enter_context(ProcessPoolExecutor(1, context, join, (ring,))) for _ in slices]
    asking = [pools[place].submit(run, place, len(slices), each) for place, each in enumerate(slices)]
    ring.begin(len(slices))
    return asking


def test_processes_run_one_at_a_time_and_their_clocks_exclude_other_turns() -> None:
    with ExitStack() as stack:
        found = [each.result(60) for each in asked(stack, [30, 10, 20])]
    slices = sorted(worked for _, each in found for worked in each)
    assert all(end <= begin for (_, end), (begin, _) in pairwise(slices))
    begins = [each[0][0] for _, each in found]
    assert max(begins) < found[0][1][-1][1]  # interleaved turns, not sequential runs
    for seconds, worked in found:
        taken = sum(end - begin for begin, end in worked)
        assert taken <= seconds < taken + MARGIN_S


def test_failed_arm_leaves_the_ring_to_the_others() -> None:
    with ExitStack() as stack:
        first, failing, last = asked(stack, [10, 1, 10])
        assert len(first.result(60)[1]) == len(last.result(60)[1]) == 10
        with pytest.raises(ValueError, match="an arm that fails"):
            failing.result(60)
