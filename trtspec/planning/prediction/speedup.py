# SPDX-License-Identifier: Apache-2.0
"""What drafting gains: the tokens of a step, its seconds beside those of the target alone, and what follows of both.

Leviathan et al. 2023 (arXiv:2211.17192) for the tokens of a chain; of a tree the acceptance rate is that of a depth:
how often one of the children of an accepted node is accepted (Sequoia, arXiv:2402.12374). Knows no recipe.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Literal, TypeAlias

from trtspec.methods.speedup import expected_tokens
from trtspec.planning.prediction.flops import Work
from trtspec.planning.prediction.roofline import Machine, pass_seconds

MOST_TEXTS = 1024  # larger batches are not looked at

Passes: TypeAlias = Literal["none", "one", "each"]  # of what drafts in a step, as `Method.draft_passes` says


def passes_of(passes: Passes, depth: int, breadth: float) -> tuple[int, float]:
    """Return how often what drafts runs in a step, and with how many new tokens of a text each time."""
    if passes == "none":
        return 0, 0.0
    return (1, depth * breadth) if passes == "one" else (depth, breadth)


def reading_cost(target: Work, draft: Work | None, passes: Passes, depth: int, breadth: float) -> float:
    """Return the bytes of weights that a step which drafts for one text reads, in those of the target alone."""
    times, tokens = passes_of(passes, depth, breadth)
    drafting = times * draft.weight_bytes(round(tokens)) if draft else 0.0
    return (target.weight_bytes(1 + round(depth * breadth)) + drafting) / target.weight_bytes(1)


@dataclass(frozen=True)
class Drafting:
    """What drafts: `work` is None where tokens are looked up, `machine` where it runs.

    A tree of depth d verifies `breadth` times d tokens.
    """

    work: Work | None
    machine: Machine
    passes: Passes = "each"
    breadth: float = 1.0

    def seconds(self, depth: int, texts: int, context: int) -> float:
        """Return how long a step's drafting takes."""
        passes, tokens = passes_of(self.passes, depth, self.breadth)
        if self.work is None or not passes:
            return 0.0
        return passes * (pass_seconds(self.work, self.machine, texts, tokens, context) + self.machine.reached.draft_s)


@dataclass(frozen=True)
class Pair:
    """A target and what drafts for it, at a context length in tokens."""

    target: Work
    machine: Machine
    drafting: Drafting
    context: int
    _known: dict[tuple[int, int], float] = field(default_factory=dict, init=False, repr=False, compare=False)

    def alone_seconds(self, texts: int) -> float:
        """Return the seconds of a step of the target alone."""
        return pass_seconds(self.target, self.machine, texts, 1, self.context)

    def step_seconds(self, texts: int, depth: int) -> float:
        """Return the seconds of a step that drafts and verifies, or of the target alone where `depth` is 0."""
        if not depth:
            return self.alone_seconds(texts)
        verified = 1 + depth * self.drafting.breadth
        verifying = pass_seconds(self.target, self.machine, texts, verified, self.context)
        return verifying + self.drafting.seconds(depth, texts, self.context) + self.machine.reached.step_s

    def speedup(self, rate: float, depth: int, texts: int) -> float:
        """Return the tokens a second over those of the target alone, at one acceptance rate for all depths."""
        return expected_tokens(rate, depth) * self.step_ratio(depth, texts)

    def step_ratio(self, depth: int, texts: int) -> float:
        """Return a step of the target alone in units of one that drafts; times the tokens of a step, the speed-up.

        It is kept: all acceptance rates ask for the same ones.
        """
        key = (depth, texts)
        if key not in self._known:
            self._known[key] = self.alone_seconds(texts) / self.step_seconds(texts, depth)
        return self._known[key]

    def best_depth(self, rate: float, depths: Sequence[int], texts: int) -> int:
        """Return the depth that is fastest, 0 where none is faster than the target alone."""
        best = max(depths, key=lambda depth: self.speedup(rate, depth, texts), default=0)
        return best if best and self.speedup(rate, best, texts) > 1 else 0

    def break_even(self, rate: float, depth: int) -> int | None:
        """Return the fewest texts at which drafting is no faster than the target alone, None where there are none.

        More experts read make small batches slower than one text, so every batch is looked at.
        """
        slow = (texts for texts in range(1, MOST_TEXTS + 1) if self.speedup(rate, depth, texts) <= 1)
        return next(slow, None)

    def schedule(self, rate: float, depths: Sequence[int], most_texts: int) -> list[tuple[int, int]]:
        """Return (most texts, depth) in the form of `speculation.schedule`: depths fall, the last one ends drafting."""
        found: list[tuple[int, int]] = []
        allowed = list(depths)
        for texts in _batches(most_texts):
            depth = self.best_depth(rate, allowed, texts)
            allowed = [each for each in allowed if each <= depth]
            if found and found[-1][1] == depth:
                found.pop()
            found.append((texts, depth))
        return found


def _batches(most: int) -> list[int]:
    """Return the powers of two up to `most`, and `most`."""
    return sorted({most, *(1 << power for power in range(most.bit_length()) if 1 << power <= most)})


def tree_tokens(rates: Sequence[float]) -> float:
    """Return the mean tokens of a step by the acceptance rate of each depth: one, and those of each depth reached."""
    return 1 + sum(prod(rates[: depth + 1]) for depth in range(len(rates)))
