# SPDX-License-Identifier: Apache-2.0
"""Speed-up of drafting, from the tokens and the seconds of a step relative to the target alone.

The expected tokens of a chain follow Leviathan et al. 2023 (arXiv:2211.17192). For a tree, the acceptance rate of a
depth is the probability that a child of an accepted node is accepted (Sequoia, arXiv:2402.12374). Independent of
recipes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Literal, TypeAlias

from trtspec.methods.speedup import expected_tokens
from trtspec.planning.prediction.flops import Work
from trtspec.planning.prediction.roofline import GpuGroup, pass_seconds

MOST_TEXTS = 1024  # larger batches are not considered

Passes: TypeAlias = Literal["none", "one", "each"]  # drafter passes per step, as in `Method.draft_passes`


def drafter_passes(passes: Passes, depth: int, breadth: float) -> tuple[int, float]:
    """Return the number of drafter passes per step, and the new tokens per text in each."""
    if passes == "none":
        return 0, 0.0
    return (1, depth * breadth) if passes == "one" else (depth, breadth)


def reading_cost(target: Work, draft: Work | None, passes: Passes, depth: int, breadth: float) -> float:
    """Return the weight bytes read by a step that drafts for one text, relative to the target alone."""
    times, tokens = drafter_passes(passes, depth, breadth)
    drafting = times * draft.weight_bytes(round(tokens)) if draft else 0.0
    return (target.weight_bytes(1 + round(depth * breadth)) + drafting) / target.weight_bytes(1)


@dataclass(frozen=True)
class DrafterCost:
    """The drafter; `work` is None if tokens are looked up, and `machine` is where it runs.

    A tree of depth d verifies `breadth` times d tokens.
    """

    work: Work | None
    machine: GpuGroup
    passes: Passes = "each"
    breadth: float = 1.0

    def seconds(self, depth: int, texts: int, context: int) -> float:
        """Return the drafting time of a step."""
        passes, tokens = drafter_passes(self.passes, depth, self.breadth)
        if self.work is None or not passes:
            return 0.0
        return passes * (pass_seconds(self.work, self.machine, texts, tokens, context) + self.machine.reached.draft_s)


@dataclass(frozen=True)
class TargetDraftPair:
    """A target and its drafter, at a context length in tokens."""

    target: Work
    machine: GpuGroup
    drafting: DrafterCost
    context: int
    _known: dict[tuple[int, int], float] = field(default_factory=dict, init=False, repr=False, compare=False)

    def alone_seconds(self, texts: int) -> float:
        """Return the seconds of a step of the target alone."""
        return pass_seconds(self.target, self.machine, texts, 1, self.context)

    def step_seconds(self, texts: int, depth: int) -> float:
        """Return the seconds of a step that drafts and verifies, or of the target alone if `depth` is 0."""
        if not depth:
            return self.alone_seconds(texts)
        verified = 1 + depth * self.drafting.breadth
        verifying = pass_seconds(self.target, self.machine, texts, verified, self.context)
        return verifying + self.drafting.seconds(depth, texts, self.context) + self.machine.reached.step_s

    def speedup(self, rate: float, depth: int, texts: int) -> float:
        """Return the speed-up over the target alone, with one acceptance rate for all depths."""
        return expected_tokens(rate, depth) * self.step_ratio(depth, texts)

    def step_ratio(self, depth: int, texts: int) -> float:
        """Return the time of a step of the target alone relative to one that drafts; times the tokens, the speed-up.

        Values are cached, because they are equal for all acceptance rates.
        """
        key = (depth, texts)
        if key not in self._known:
            self._known[key] = self.alone_seconds(texts) / self.step_seconds(texts, depth)
        return self._known[key]

    def best_depth(self, rate: float, depths: Sequence[int], texts: int) -> int:
        """Return the fastest depth, 0 if none is faster than the target alone."""
        best = max(depths, key=lambda depth: self.speedup(rate, depth, texts), default=0)
        return best if best and self.speedup(rate, best, texts) > 1 else 0

    def break_even(self, rate: float, depth: int) -> int | None:
        """Return the fewest texts at which drafting is not faster than the target alone, None if it always is.

        Every batch size is tried: with experts, small batches can be slower than one text.
        """
        slow = (texts for texts in range(1, MOST_TEXTS + 1) if self.speedup(rate, depth, texts) <= 1)
        return next(slow, None)

    def schedule(self, rate: float, depths: Sequence[int], most_texts: int) -> list[tuple[int, int]]:
        """Return (most texts, depth) in the form of `speculation.schedule`, with decreasing depths."""
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
    """Return the mean tokens of a step, from the acceptance rate of each depth."""
    return 1 + sum(prod(rates[: depth + 1]) for depth in range(len(rates)))
