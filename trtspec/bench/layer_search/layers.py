# SPDX-License-Identifier: Apache-2.0
"""Find the subset of a target's layers that makes the best draft model, and measure its acceptance.

The pruned model is separate from the target and has its own KV cache. While its greedy chain matches the target's text
it has read the same tokens, so one pass over a text gives the length of the matching chain from every position.
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

from trtspec.bench.layer_search.search import OnProgress, SearchBudget, draft_cost, ranked, search
from trtspec.bench.layer_search.sublayers import Matcher, generate_texts, load_target_for
from trtspec.bench.profile.acceptance import AcceptanceStats, count_steps
from trtspec.methods.layer_skips import Skip

if TYPE_CHECKING:
    from trtspec.engine.replay import ReplayedDraft

FORMAT_VERSION = 1
LENS = range(1, 17)


@dataclass(frozen=True)
class PrunedDraft:
    """A pruned draft, measured on texts that the search did not use; `cost` has the meaning of `Candidate.cost`.

    `by_len` is its acceptance at each draft length.
    """

    skip: Skip
    num_layers: int
    cost: float
    by_len: dict[int, AcceptanceStats]
    tried: int
    seconds: float

    @cached_property
    def draft_len(self) -> int:
        """Return the draft length with the highest expected speed-up."""
        return max(self.by_len, key=self._speedup)

    @property
    def layers(self) -> list[int]:
        """Return the target layers that the draft keeps."""
        return [layer for layer in range(self.num_layers) if layer not in self.skip.layers]

    @property
    def acceptance(self) -> AcceptanceStats:
        """Return the acceptance at `draft_len`."""
        return self.by_len[self.draft_len]

    @property
    def speedup(self) -> float:
        """Return the expected speed-up at `draft_len` if the time of a step is proportional to the weights read."""
        return self._speedup(self.draft_len)

    def as_dict(self) -> dict[str, Any]:
        """Return the document of `prune --json` without the directory."""
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
    limits: SearchBudget,
    seed: int,
    on_progress: OnProgress = lambda what, done, total: None,
    clock: Callable[[], float] = time.monotonic,
) -> PrunedDraft:
    """Search on the target's responses to `samples` prompts of a file, drawn with `seed`.

    Candidates are scored on half of the texts; the best one is measured on the other half. Raises TrtspecError if no
    layer can be skipped or there are too few responses.
    """
    import torch

    started = clock()
    texts = generate_texts(root, prompts, samples, max_tokens, seed, on_progress)
    with torch.inference_mode():
        model, half = load_target_for(root, texts), len(texts) // 2
        seen, unseen = (Matcher(model, some, 0, alone=True) for some in (texts[:half], texts[half:]))
        tried = search(model.config, seen.matchness, limits, Random(seed), on_progress, clock)
        most = max(len(candidate.skip.layers) for candidate in tried)
        fitting = [each for each in tried if not limits.layers_left or len(each.skip.layers) == most]
        skip = ranked(fitting)[0].skip
        chains = [_chains(hits) for hits in unseen.hits(skip)]
    found = {
        length: AcceptanceStats(tuple(count_steps(places, length) for places in chains), ("",) * len(chains))
        for length in LENS
    }
    cost = draft_cost(skip, model.config)
    return PrunedDraft(skip, model.config.num_layers, cost, found, len(tried), clock() - started)


def _chains(hits: list[bool]) -> list[ReplayedDraft]:
    """Return the draft chain after each generated token except the last; it is correct until the first miss."""
    from trtspec.engine.replay import ReplayedDraft

    longest = max(LENS)
    return [
        ReplayedDraft(longest, longest, sum(takewhile(bool, hits[place : place + longest])))
        for place in range(1, len(hits))
    ]
