# SPDX-License-Identifier: Apache-2.0
"""Successive halving: run all arms on few texts, then the better half on twice as many, and the last ones on all.

Jamieson and Talwalkar 2016, arXiv:1502.07943. The first arm is the user's current setting and is never dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Generic, TypeVar

Arm = TypeVar("Arm")
LEAST_TEXTS = 4


@dataclass(frozen=True)
class Rung(Generic[Arm]):
    """One round: the number of texts, every arm with its score in descending order, and how many advanced."""

    texts: int
    scores: Sequence[tuple[Arm, float]]
    kept: int


def rung_sizes(texts: int, arms: int) -> list[int]:
    """Return the number of texts of each round; the last round uses all."""
    sizes = [texts]
    while 2 ** len(sizes) < arms and sizes[0] // 2 >= LEAST_TEXTS:
        sizes.insert(0, sizes[0] // 2)
    return sizes


def halve(arms: Sequence[Arm], sizes: Sequence[int], score: Callable[[Arm, int], float]) -> Iterator[Rung[Arm]]:
    """Yield the rounds; `score` rates an arm on the first texts, and ties favour the earlier arm."""
    own, left = arms[0], list(arms)
    for place, size in enumerate(sizes):
        scores = sorted(((arm, score(arm, size)) for arm in left), key=lambda pair: -pair[1])
        kept = len(scores) if place == len(sizes) - 1 else ceil(len(scores) / 2)
        better = [arm for arm, _ in scores[:kept]]
        yield Rung(size, scores, kept)
        left = better if own in better else [own, *better]
