# SPDX-License-Identifier: Apache-2.0
"""Finds which layers of an artifact's target make the best draft model of it, and how far that is accepted.

A part of the target that is a model of its own reads prompts and answers itself. As long as its greedy chain is right
it has read the text, so one pass over a text tells how long the chain from every place holds.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from trtspec.bench.layer_search.search import OnProgress, SkipLimits, draft_cost, ranked, search
from trtspec.bench.layer_search.sublayers import Matcher, answered, load_for
from trtspec.bench.profile.acceptance import Acceptance, count_steps
from trtspec.methods.layer_skips import Skip

if TYPE_CHECKING:
    from trtspec.engine.replay import Proposed

FORMAT_VERSION = 1
LENS = range(1, 17)


@dataclass(frozen=True)
class PrunedDraft:
    """A draft of the layers that are left, by texts that the search had not seen; `cost` is as a candidate's.

    `by_len` is its acceptance at each draft length.
    """

    skip: Skip
    num_layers: int
    cost: float
    by_len: dict[int, Acceptance]
    tried: int
    seconds: float

    @cached_property
    def draft_len(self) -> int:
        """Return the draft length that promises most."""
        return max(self.by_len, key=self._speedup)

    @property
    def layers(self) -> list[int]:
        """Return the target's layers that it has."""
        return [layer for layer in range(self.num_layers) if layer not in self.skip.layers]

    @property
    def acceptance(self) -> Acceptance:
        """Return that at `draft_len`."""
        return self.by_len[self.draft_len]

    @property
    def speedup(self) -> float:
        """Return what is expected at `draft_len` where a step takes as long as its weights take to read."""
        return self._speedup(self.draft_len)

    def as_dict(self) -> dict[str, Any]:
        """Return the document of `prune --json`, but for the directory."""
        value, low, high = self.acceptance.token_weighted.as_list()
        return {
            "format_version": FORMAT_VERSION,
            "layers": self.layers,
            "left_out": self.skip.layers,
            "cost": round(self.cost, 4),
            "draft_len": self.draft_len,
            "mean_accepted_len": value,
            "interval": [low, high],
            "acceptance_rate": round(self.acceptance.rate, 4),
            "expected_speedup": round(self.speedup, 3),
            "texts": len(self.acceptance.texts),
            "tried": self.tried,
            "seconds": round(self.seconds, 2),
        }

    def _speedup(self, draft_len: int) -> float:
        return self.by_len[draft_len].token_weighted.value / (1 + draft_len * self.cost)


def search_layers(
    root: Path,
    prompts: Path | None,
    *,
    samples: int,
    max_tokens: int,
    limits: SkipLimits,
    seed: int,
    on_progress: OnProgress = lambda what, done, total: None,
    clock: Callable[[], float] = time.monotonic,
) -> PrunedDraft:
    """Search on what the target of an artifact just built says to `samples` prompts of a file, drawn by `seed`.

    Sets are tried on half of the texts, the best is measured on the others. Raises TrtspecError where no layer can be
    left out, or the target says too little.
    """
    import torch

    started = clock()
    texts = answered(root, prompts, samples, max_tokens, seed, on_progress)
    with torch.inference_mode():
        model, half = load_for(root, texts), len(texts) // 2
        seen, unseen = (Matcher(model, some, 0, alone=True) for some in (texts[:half], texts[half:]))
        tried = search(model.config, seen.matchness, limits, Random(seed), on_progress, clock)
        most = max(len(candidate.skip.layers) for candidate in tried)
        fitting = [each for each in tried if not limits.layers_left or len(each.skip.layers) == most]
        skip = ranked(fitting)[0].skip
        chains = [_chains(hits) for hits in unseen.hits(skip)]
    found = {
        length: Acceptance(tuple(count_steps(places, length) for places in chains), ("",) * len(chains))
        for length in LENS
    }
    cost = draft_cost(skip, model.config)
    return PrunedDraft(skip, model.config.num_layers, cost, found, len(tried), clock() - started)


def _chains(hits: list[bool]) -> list[Proposed]:
    """Return the chains behind each token that was said but the last: they are right as long as all hits are."""
    from trtspec.engine.replay import Proposed

    longest = max(LENS)
    return [
        Proposed(longest, longest, sum(takewhile(bool, hits[place : place + longest]))) for place in range(1, len(hits))
    ]
