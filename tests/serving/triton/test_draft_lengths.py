# SPDX-License-Identifier: Apache-2.0
"""Draft lengths chosen by measurement, in simulations with known step times and acceptance."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import ExitStack

import pytest

from trtspec.serving.triton.python_models.adaptive_draft_len import AGAIN_S, AdaptiveDraftLen

ALONE = 32  # tokens of a step without drafting


class World:
    """A simulation: a clock, and steps whose time and tokens depend on the draft length and the number of texts."""

    def __init__(self, acceptance: float, draft_s: float, verify_s: Callable[[int], float]) -> None:
        self.now, self.acceptance, self.draft_s, self.verify_s = 0.0, acceptance, draft_s, verify_s
        self.random = random.Random(0)

    def step(self, draft_len: int, texts: int) -> int:
        """Advance the clock by a step and return its tokens."""
        if draft_len == 0:
            self.now += ALONE * self.verify_s(texts) * self.random.uniform(0.9, 1.1)
            return ALONE
        accepted = 0
        while accepted < draft_len and self.random.random() < self.acceptance:
            accepted += 1
        self.now += (draft_len * self.draft_s + self.verify_s(texts * (draft_len + 1))) * self.random.uniform(0.9, 1.1)
        return accepted + 1


def run(world: World, lengths: AdaptiveDraftLen, texts: int, steps: int) -> tuple[float, list[int]]:
    """Return the tokens per second of a number of steps, and the chosen lengths."""
    chosen, tokens, begun = [], 0, world.now
    with ExitStack() as stack:
        for _ in range(texts):
            stack.enter_context(lengths.text())
        for _ in range(steps):
            choice = lengths.choose()
            made = world.step(choice.draft_len, texts)
            lengths.note(choice, made)
            chosen.append(choice.draft_len)
            tokens += made
    return tokens / (world.now - begun), chosen


def flat(width: int) -> float:
    return 0.010


def rising(width: int) -> float:
    return 0.004 + 0.001 * width


def test_adaptive_draft_length_is_maximal_for_good_drafts_and_zero_for_bad() -> None:
    for acceptance, expected in ((0.9, 6), (0.0, 0)):
        world = World(acceptance, 0.001, flat)
        lengths = AdaptiveDraftLen(6, now=lambda world=world: world.now)
        run(world, lengths, 1, 40)
        _, chosen = run(world, lengths, 1, 200)
        assert chosen.count(expected) > 180


@pytest.mark.parametrize("acceptance", [0.0, 0.3, 0.6, 0.9])
@pytest.mark.parametrize("texts", [1, 4, 16, 64])
def test_adaptive_draft_length_is_not_slower_than_the_target_alone(acceptance: float, texts: int) -> None:
    """If the cost of a step grows with its verified tokens, drafting pays for few texts but not for many."""
    world = World(acceptance, 0.001, rising)
    lengths = AdaptiveDraftLen(6, now=lambda: world.now)
    speed, _ = run(world, lengths, texts, 2000)
    alone = 1 / rising(texts)
    assert speed > 0.97 * alone


def test_adaptive_draft_length_follows_changes_of_acceptance() -> None:
    world = World(0.9, 0.001, flat)
    lengths = AdaptiveDraftLen(6, now=lambda: world.now)
    run(world, lengths, 1, 100)
    world.acceptance = 0.0
    run(world, lengths, 1, 100)
    assert run(world, lengths, 1, 100)[1].count(0) > 90
    world.acceptance = 0.9
    world.now += 2 * AGAIN_S
    run(world, lengths, 1, 400)
    assert run(world, lengths, 1, 100)[1].count(6) > 80


def test_schedule_limits_the_adaptive_draft_length() -> None:
    lengths = AdaptiveDraftLen(5, [(1, 5), (3, 2)], now=lambda: 0.0)
    limits = []
    with ExitStack() as stack:
        for _ in range(5):
            stack.enter_context(lengths.text())
            limits.append(lengths.limit())
    assert limits == [5, 2, 2, 0, 0]
    assert lengths.limit() == 5
