# SPDX-License-Identifier: Apache-2.0
"""Search for sublayers that a target can skip, given a function that scores a set of them.

Loads and measures nothing itself. The score is the matchness, the share of positions where the target without these
sublayers predicts the same token (SWIFT, Xia et al. 2024, arXiv:2410.06916). Sets are ranked by the expected speed-up
at their best draft length, not by matchness alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from trtspec.checkpoints.model_config import ModelConfig
from trtspec.core.errors import TrtspecError
from trtspec.methods.base import find_method
from trtspec.methods.layer_pruning import KINDS, Skip
from trtspec.methods.speedup import expected_speedup

# After this many known proposals in a row, the neighbourhood of the best set is considered explored.
MOST_REPEATS = 500

OnProgress = Callable[[str, int, int], None]
# Sublayers that are skipped or kept together, each as (kind, layer).
Unit = tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class SearchBudget:
    """The search budget: the largest share of sublayers to skip, the number of sets to try, and the seconds.

    With `whole_layers`, a layer's attention and MLP are skipped together. With `layers_left`, whole layers are skipped
    until that many remain, regardless of `max_skip`.
    """

    max_skip: float
    iterations: int
    seconds: float
    whole_layers: bool = False
    layers_left: int = 0

    def most(self, units: int, num_layers: int) -> int:
        return num_layers - self.layers_left if self.layers_left else int(self.max_skip * units)

    def check(self, num_layers: int) -> None:
        """Raise TrtspecError if `layers_left` is impossible; the first and the last layer must remain."""
        if self.layers_left and not 2 <= self.layers_left < num_layers:
            message = f"cannot keep {self.layers_left} of {num_layers} layers"
            raise TrtspecError(message, hint="keep at least 2 layers (the first and the last) and skip at least 1")


@dataclass(frozen=True)
class SkipCandidate:
    """A set of skipped sublayers with its matchness and expected speed-up.

    `cost` is the share of the weights that a draft step reads, `draft_len` the length with the highest expected
    speed-up.
    """

    skip: Skip
    matchness: float
    cost: float
    draft_len: int
    speedup: float

    def as_dict(self) -> dict[str, Any]:
        return {
            "skip": self.skip.model_dump(),
            "matchness": round(self.matchness, 4),
            "cost": round(self.cost, 4),
            "draft_len": self.draft_len,
            "expected_speedup": round(self.speedup, 3),
        }


def rate(skip: Skip, matchness: float, config: ModelConfig) -> SkipCandidate:
    """Return the candidate for a set with this matchness, at its best draft length."""
    cost = draft_cost(skip, config)
    draft_len = max(find_method("swift").draft_lens, key=lambda length: expected_speedup(matchness, length, cost))
    return SkipCandidate(skip, matchness, cost, draft_len, expected_speedup(matchness, draft_len, cost))


def draft_cost(skip: Skip, config: ModelConfig) -> float:
    """Return the weights that a draft step reads as a share of those that a target step reads."""
    hidden, size = config.hidden_size, config.head_size
    attention = 2 * (config.num_heads + config.num_kv_heads) * size * hidden
    mlp = 3 * hidden * config.intermediate_size * max(1, config.experts_per_token)
    whole = config.num_layers * (attention + mlp) + config.vocab_size * hidden
    return 1 - (len(skip.attention) * attention + len(skip.mlp) * mlp) / whole


def ranked(candidates: Sequence[SkipCandidate]) -> list[SkipCandidate]:
    """Return candidates by descending expected speed-up."""
    return sorted(candidates, key=lambda candidate: -candidate.speedup)


def search(
    config: ModelConfig,
    matchness: Callable[[Skip], float],
    limits: SearchBudget,
    chance: Random,
    on_progress: OnProgress = lambda what, done, total: None,
    clock: Callable[[], float] = time.monotonic,
) -> list[SkipCandidate]:
    """Return the sets tried until a limit was reached or no new set was found near the best one.

    The first and the last layer are never skipped, as in SWIFT. Raises TrtspecError if that leaves nothing to skip.
    """
    limits.check(config.num_layers)
    units = _units(config.num_layers, limits.whole_layers or bool(limits.layers_left))
    most = limits.most(len(units), config.num_layers)
    if not most:
        what = "layers" if limits.whole_layers else "sublayers"
        between = f"{len(units)} {what} between the target's first and last layer"
        message = f"nothing can be skipped: there are {between}, and --max-skip allows {limits.max_skip:.0%} of them"
        raise TrtspecError(message, hint="raise --max-skip or use another method")
    end, repeats = clock() + limits.seconds, 0
    scored: dict[frozenset[Unit], SkipCandidate] = {}
    for proposal in _proposals(units, most, scored, chance, fills=bool(limits.layers_left)):
        if proposal in scored:
            repeats += 1
        else:
            repeats = 0
            skip = _skip_from_units(proposal)
            scored[proposal] = rate(skip, matchness(skip), config)
            on_progress("search", len(scored), limits.iterations)
        if repeats == MOST_REPEATS or len(scored) == limits.iterations or clock() > end:
            break
    return list(scored.values())


def _units(num_layers: int, whole_layers: bool) -> list[Unit]:
    between = range(1, num_layers - 1)
    if whole_layers:
        return [tuple((kind, layer) for kind in KINDS) for layer in between]
    return [((kind, layer),) for layer in between for kind in KINDS]


def _proposals(
    units: Sequence[Unit], most: int, scored: dict[frozenset[Unit], SkipCandidate], chance: Random, *, fills: bool
) -> Iterator[frozenset[Unit]]:
    """Yield each unit alone, then growing sets by descending matchness, then variations of the best set.

    The best set has the highest expected speed-up; with `fills`, among the sets with the most units. The caller must
    add each set to `scored` before requesting the next one.
    """
    yield from (frozenset({unit}) for unit in units)
    missed_least = sorted(units, key=lambda unit: -scored[frozenset({unit})].matchness)
    yield from (frozenset(missed_least[:count]) for count in range(2, most + 1))
    while True:
        best = max(scored, key=lambda tried: (len(tried) if fills else 0, scored[tried].speedup))
        yield _changed(best, units, most, chance)


def _changed(best: frozenset[Unit], units: Sequence[Unit], most: int, chance: Random) -> frozenset[Unit]:
    """Return the set with one random unit added, removed or replaced."""
    dropped, added = (
        {chance.choice(sorted(best))},
        {chance.choice([unit for unit in units if unit not in best] or units)},
    )
    changes = [best | added, best - dropped, (best - dropped) | added]
    return chance.choice([change for change in changes if 0 < len(change) <= most])


def _skip_from_units(units: frozenset[Unit]) -> Skip:
    left_out = [sublayer for unit in units for sublayer in unit]
    return Skip(**{kind: sorted(layer for each, layer in left_out if each == kind) for kind in KINDS})
