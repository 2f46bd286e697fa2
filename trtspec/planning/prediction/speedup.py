# SPDX-License-Identifier: Apache-2.0
"""Time of a forward pass on GPUs, and speed-up of drafting over the target alone. Independent of recipes.

The time of a pass is the sum of the times for reading and for computing, and the overhead of layers and all-reduces. A
roofline model (doi:10.1145/1498765.1498785) takes the maximum of the two. Published batches are slower than that
maximum, and the sum fits them (docs/planning.md). `published.yaml` has the efficiency of real engines, fitted to
published measurements.

With an acceptance rate a per token, a step of draft_len k produces (1 - a^(k+1)) / (1 - a) tokens on average, and costs
k draft steps and one step of the target (Leviathan et al. 2023, arXiv:2211.17192, theorem 3.8). For a tree, the
acceptance rate at a depth is the probability that a child of an accepted node is accepted (Sequoia, arXiv:2402.12374).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from math import prod
from pathlib import Path
from typing import Any, Literal, TypeAlias

from trtspec.core.gpus import Gpu
from trtspec.core.paths import load_package_yaml
from trtspec.planning.prediction.flops import ITEM_BYTES, Work

HOPPER_SM = 90


@dataclass(frozen=True)
class EfficiencyData:
    """Fractions of a GPU's peak bandwidth and arithmetic that a pass reaches, and fixed overheads in seconds.

    `layer_s` is added per layer (launches, norms, waiting for other GPUs), `draft_s` per draft pass, and `step_s` per
    step that drafts (preparation, acceptance, sampling). `fitted_to` lists the rows that these values were fitted to.
    """

    bandwidth: float
    compute: float
    layer_s: float
    draft_s: float
    step_s: float
    fitted_to: tuple[str, ...]


@dataclass(frozen=True)
class PublishedAcceptance:
    """Published acceptance rates of a method, one per draft depth, and their source."""

    rates: tuple[float, ...]
    source: str

    def at_depth(self, depth: int) -> list[float]:
        """Return the rates of the first `depth` draft tokens; the last published rate is repeated if necessary."""
        return [self.rates[min(number, len(self.rates) - 1)] for number in range(depth)]


@cache
def _published() -> dict[str, Any]:
    document: dict[str, Any] = load_package_yaml(Path(__file__).with_name("published.yaml"))
    return document


@cache
def load_efficiency(generation: str) -> EfficiencyData:
    """Return the fitted efficiency of a GPU generation, "hopper" or "ampere"."""
    found = _published()["reached"][generation]
    return EfficiencyData(**found | {"fitted_to": tuple(found["fitted_to"])})


def published_acceptance(method: str) -> PublishedAcceptance | None:
    """Return the published acceptance rates of a method, or None if they are unknown."""
    found = _published()["acceptance"].get(method)
    return PublishedAcceptance(tuple(found["rates"]), found["source"]) if found else None


REDUCES = 2  # all-reduces per layer: after attention and after the MLP


@dataclass(frozen=True)
class GpuGroup:
    """A tensor-parallel group of GPUs; pipeline stages run sequentially and do not change the time of a pass."""

    gpu: Gpu
    tensor: int = 1

    @cached_property
    def reached(self) -> EfficiencyData:
        """Return the efficiency of engines on these GPUs: Blackwell counts as Hopper, older GPUs count as Ampere."""
        return load_efficiency("hopper" if self.gpu.sm >= HOPPER_SM else "ampere")


def pass_seconds(work: Work, machine: GpuGroup, texts: int, new_tokens: float, context: int) -> float:
    """Return the seconds of a pass that adds `new_tokens` to each of `texts` texts of `context` tokens."""
    tokens = max(1, round(texts * new_tokens))
    reached, gpu = machine.reached, machine.gpu
    cache = work.cache_bytes(texts, context, machine.tensor)
    reading = (work.weight_bytes(tokens) / machine.tensor + cache) / (gpu.bandwidth * reached.bandwidth)
    peak = gpu.fp8_flops if work.is_fp8 and gpu.fp8_flops else gpu.flops
    computing = work.flops(tokens) / machine.tensor / (peak * reached.compute)
    return reading + computing + work.num_layers * (reached.layer_s + _reducing(work, machine, tokens))


def _reducing(work: Work, machine: GpuGroup, tokens: int) -> float:
    """Return the seconds of a layer's ring all-reduces, in which each GPU sends nearly the whole activation twice."""
    if machine.tensor == 1:
        return 0.0
    sent = 2 * (machine.tensor - 1) / machine.tensor * tokens * work.hidden_size * ITEM_BYTES
    return REDUCES * sent / machine.gpu.link


MOST_TEXTS = 1024  # larger batches are not considered

Passes: TypeAlias = Literal["none", "one", "each"]  # drafter passes per step, as in `Method.draft_passes`


def expected_tokens(acceptance_rate: float, draft_len: int) -> float:
    """Return the mean number of tokens per step with a chain of `draft_len` drafted tokens."""
    if acceptance_rate >= 1.0:
        return draft_len + 1.0
    return (1.0 - acceptance_rate ** (draft_len + 1)) / (1.0 - acceptance_rate)


def expected_speedup(acceptance_rate: float, draft_len: int, draft_cost: float) -> float:
    """Return the speed-up over the target alone; `draft_cost` is the time of a draft step in target steps."""
    return expected_tokens(acceptance_rate, draft_len) / (draft_len * draft_cost + 1.0)


def drafter_passes(passes: Passes, depth: int, breadth: float) -> tuple[int, float]:
    """Return the number of drafter passes per step, and the number of new tokens per text in each pass."""
    if passes == "none":
        return 0, 0.0
    return (1, depth * breadth) if passes == "one" else (depth, breadth)


def reading_cost(target: Work, draft: Work | None, passes: Passes, depth: int, breadth: float) -> float:
    """Return the weight bytes read by a step that drafts for one text, relative to a step of the target alone."""
    times, tokens = drafter_passes(passes, depth, breadth)
    drafting = times * draft.weight_bytes(round(tokens)) if draft else 0.0
    return (target.weight_bytes(1 + round(depth * breadth)) + drafting) / target.weight_bytes(1)


@dataclass(frozen=True)
class DrafterCost:
    """Cost of a drafter on `machine`; `work` is None if drafts are looked up instead of computed.

    A draft of depth d has d times `breadth` tokens; `breadth` is above 1 for trees.
    """

    work: Work | None
    machine: GpuGroup
    passes: Passes = "each"
    breadth: float = 1.0

    def seconds(self, depth: int, texts: int, context: int) -> float:
        """Return the seconds that drafting adds to a step for `texts` texts of `context` tokens."""
        passes, tokens = drafter_passes(self.passes, depth, self.breadth)
        if self.work is None or not passes:
            return 0.0
        return passes * (pass_seconds(self.work, self.machine, texts, tokens, context) + self.machine.reached.draft_s)


@dataclass(frozen=True)
class TargetDraftPair:
    """Costs of a target and its drafter at a context length in tokens."""

    target: Work
    machine: GpuGroup
    drafting: DrafterCost
    context: int
    _known: dict[tuple[int, int], float] = field(default_factory=dict, init=False, repr=False, compare=False)

    def alone_seconds(self, texts: int) -> float:
        """Return the seconds of a step of the target alone."""
        return pass_seconds(self.target, self.machine, texts, 1, self.context)

    def step_seconds(self, texts: int, depth: int) -> float:
        """Return the seconds of a step that drafts and verifies `depth` tokens; with depth 0, the target runs alone."""
        if not depth:
            return self.alone_seconds(texts)
        verified = 1 + depth * self.drafting.breadth
        verifying = pass_seconds(self.target, self.machine, texts, verified, self.context)
        return verifying + self.drafting.seconds(depth, texts, self.context) + self.machine.reached.step_s

    def speedup(self, rate: float, depth: int, texts: int) -> float:
        """Return the speed-up over the target alone, assuming the same acceptance rate at all depths."""
        return expected_tokens(rate, depth) * self.step_ratio(depth, texts)

    def step_ratio(self, depth: int, texts: int) -> float:
        """Return the duration of a target-only step divided by the duration of a step that drafts.

        Multiplied by the mean tokens per step, the ratio is the speed-up. Ratios are cached, because they do not depend
        on the acceptance rate.
        """
        key = (depth, texts)
        if key not in self._known:
            self._known[key] = self.alone_seconds(texts) / self.step_seconds(texts, depth)
        return self._known[key]

    def best_depth(self, rate: float, depths: Sequence[int], texts: int) -> int:
        """Return the depth with the highest speed-up, or 0 if none is faster than the target alone."""
        best = max(depths, key=lambda depth: self.speedup(rate, depth, texts), default=0)
        return best if best and self.speedup(rate, best, texts) > 1 else 0

    def break_even(self, rate: float, depth: int) -> int | None:
        """Return the smallest batch at which drafting does not pay, or None if it pays up to MOST_TEXTS texts.

        Every batch size is tried, because with experts, small batches can be slower than a single text.
        """
        slow = (texts for texts in range(1, MOST_TEXTS + 1) if self.speedup(rate, depth, texts) <= 1)
        return next(slow, None)

    def schedule(self, rate: float, depths: Sequence[int], most_texts: int) -> list[tuple[int, int]]:
        """Return (maximum batch, depth) pairs for `speculation.schedule`; depths decrease as batches grow."""
        found: list[tuple[int, int]] = []
        allowed = list(depths)
        powers = (1 << power for power in range(most_texts.bit_length()))
        for texts in sorted({most_texts, *powers}):
            depth = self.best_depth(rate, allowed, texts)
            allowed = [each for each in allowed if each <= depth]
            if found and found[-1][1] == depth:
                found.pop()
            found.append((texts, depth))
        return found


def tree_tokens(rates: Sequence[float]) -> float:
    """Return the mean number of tokens per step, given the acceptance rate at each depth."""
    return 1 + sum(prod(rates[: depth + 1]) for depth in range(len(rates)))
