# SPDX-License-Identifier: Apache-2.0
"""The search for sublayers that a target can do without, given a way to tell how well it does without some.

Loads nothing and measures nothing: what is asked for is a set's matchness, the share of places where the target
without these sublayers says the same (SWIFT, Xia et al. 2024, arXiv:2410.06916). What counts is not matchness alone
but the speed-up to be expected of it, at the draft length that suits it best.
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
from trtspec.methods.layer_skips import KINDS, Skip
from trtspec.methods.speedup import expected_speedup

# So many known sets proposed in a row mean that the best one's surroundings are known.
MOST_REPEATS = 500

OnProgress = Callable[[str, int, int], None]
# What is left out or kept as one: sublayers, each as (kind, layer).
Unit = tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class SkipLimits:
    """What a search may take: at most `max_skip` of the sublayers left out, so many sets tried, so many seconds.

    With `whole_layers` no layer loses its attention without its MLP. With `layers_left` whole layers are left out until
    so many remain, whatever `max_skip` says.
    """

    max_skip: float
    iterations: int
    seconds: float
    whole_layers: bool = False
    layers_left: int = 0

    def most(self, units: int, num_layers: int) -> int:
        """Return how many of the units may be left out."""
        return num_layers - self.layers_left if self.layers_left else int(self.max_skip * units)

    def check(self, num_layers: int) -> None:
        """Raise TrtspecError where so many layers cannot be left, the first and the last among them."""
        if self.layers_left and not 2 <= self.layers_left < num_layers:
            message = f"{self.layers_left} layers cannot be left of {num_layers}"
            raise TrtspecError(message, hint="the first and the last stay, and one layer or more is left out")


@dataclass(frozen=True)
class Candidate:
    """A set of sublayers, its matchness, and what is expected of it.

    `cost` is the share of the weights that a draft step reads, `draft_len` the one that promises most.
    """

    skip: Skip
    matchness: float
    cost: float
    draft_len: int
    speedup: float

    def as_dict(self) -> dict[str, Any]:
        """Return the candidate's part of the document."""
        return {
            "skip": self.skip.model_dump(),
            "matchness": round(self.matchness, 4),
            "cost": round(self.cost, 4),
            "draft_len": self.draft_len,
            "expected_speedup": round(self.speedup, 3),
        }


def rate(skip: Skip, matchness: float, config: ModelConfig) -> Candidate:
    """Return what a set with this matchness promises, at its best draft length."""
    cost = draft_cost(skip, config)
    draft_len = max(find_method("swift").draft_lens, key=lambda length: expected_speedup(matchness, length, cost))
    return Candidate(skip, matchness, cost, draft_len, expected_speedup(matchness, draft_len, cost))


def draft_cost(skip: Skip, config: ModelConfig) -> float:
    """Return which share of the weights that a step of the target reads a draft step reads."""
    hidden, size = config.hidden_size, config.head_size
    attention = 2 * (config.num_heads + config.num_kv_heads) * size * hidden
    mlp = 3 * hidden * config.intermediate_size * max(1, config.experts_per_token)
    whole = config.num_layers * (attention + mlp) + config.vocab_size * hidden
    return 1 - (len(skip.attention) * attention + len(skip.mlp) * mlp) / whole


def ranked(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return candidates, the one that promises most first."""
    return sorted(candidates, key=lambda candidate: -candidate.speedup)


def search(
    config: ModelConfig,
    matchness: Callable[[Skip], float],
    limits: SkipLimits,
    chance: Random,
    on_progress: OnProgress = lambda what, done, total: None,
    clock: Callable[[], float] = time.monotonic,
) -> list[Candidate]:
    """Return the sets that were tried, until a limit was reached or nothing near the best one was new.

    The first and the last layer stay whole, as in SWIFT. Raises TrtspecError where that leaves nothing to leave out.
    """
    limits.check(config.num_layers)
    units = _units(config.num_layers, limits.whole_layers or bool(limits.layers_left))
    most = limits.most(len(units), config.num_layers)
    if not most:
        what = "layers" if limits.whole_layers else "sublayers"
        between = f"{len(units)} {what} between the target's first layer and its last"
        message = f"nothing can be left out: there are {between}, and {limits.max_skip:.0%} of them may be"
        raise TrtspecError(message, hint="raise --max-skip, or draft with another method")
    end, repeats = clock() + limits.seconds, 0
    scored: dict[frozenset[Unit], Candidate] = {}
    for proposal in _proposals(units, most, scored, chance, fills=bool(limits.layers_left)):
        if proposal in scored:
            repeats += 1
        else:
            repeats = 0
            skip = _skip_of(proposal)
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
    units: Sequence[Unit], most: int, scored: dict[frozenset[Unit], Candidate], chance: Random, *, fills: bool
) -> Iterator[frozenset[Unit]]:
    """Yield each unit alone, then the least missed ones together, one more each time, then the best one changed.

    The best is the one that promises most; with `fills`, of those of the most units. The next one is only asked for
    when the last one is in `scored`.
    """
    yield from (frozenset({unit}) for unit in units)
    missed_least = sorted(units, key=lambda unit: -scored[frozenset({unit})].matchness)
    yield from (frozenset(missed_least[:count]) for count in range(2, most + 1))
    while True:
        best = max(scored, key=lambda tried: (len(tried) if fills else 0, scored[tried].speedup))
        yield _changed(best, units, most, chance)


def _changed(best: frozenset[Unit], units: Sequence[Unit], most: int, chance: Random) -> frozenset[Unit]:
    """Return the set with one unit more, one less, or one instead of another."""
    dropped, added = (
        {chance.choice(sorted(best))},
        {chance.choice([unit for unit in units if unit not in best] or units)},
    )
    changes = [best | added, best - dropped, (best - dropped) | added]
    return chance.choice([change for change in changes if 0 < len(change) <= most])


def _skip_of(units: frozenset[Unit]) -> Skip:
    left_out = [sublayer for unit in units for sublayer in unit]
    return Skip(**{kind: sorted(layer for each, layer in left_out if each == kind) for kind in KINDS})
