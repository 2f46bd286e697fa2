# SPDX-License-Identifier: Apache-2.0
"""Fault isolation of drafters: if a drafter fails, requests continue without drafts and lose no text.

After an exception the drafter's state of its rows is undefined, so the running requests continue without drafts until
they end. Later requests get drafts again, unless the drafter failed repeatedly. The drafter therefore has its own row
numbers 0, 1, ... for the rows with drafts, which equal the engine's until the first failure.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from trtspec.engine.drafting.base import Drafter, DraftSampling, DraftTokens, VerifyOutcome
from trtspec.engine.generation.circuit_breaker import CircuitBreaker
from trtspec.kernels.tree import Tree

log = logging.getLogger(__name__)


@dataclass
class IsolatedDrafter:
    """Wrapper of a drafter that maps the engine's rows to the drafter's rows and isolates failures."""

    drafter: Drafter
    breaker: CircuitBreaker = field(default_factory=CircuitBreaker)
    on_fallback: Callable[[str], None] = lambda reason: None
    _places: list[int | None] = field(default_factory=list)  # the drafter's row of each engine row, None without drafts
    _texts: list[Sequence[int]] = field(default_factory=list)  # the growing texts of the drafter's rows
    _begins: bool = True  # whether the newest rows get drafts
    _was_logged: bool = False

    @property
    def drafted(self) -> list[int]:
        """Return the engine's rows that get drafts, in the order of the drafter's rows."""
        places = {place: row for row, place in enumerate(self._places) if place is not None}
        return [places[place] for place in range(len(places))]

    def begin(self, prompts: Sequence[Sequence[int]], first_row: int, max_tokens: int) -> None:
        """Process the prompts of new requests, which replace the rows from `first_row` on."""
        replaced = len(self._places[first_row:]) - self._places[first_row:].count(None)
        del self._places[first_row:]
        del self._texts[len(self._texts) - replaced :]
        self._begins = not self.drafter.remembers or self.breaker.allows()
        if not self._begins:
            self._places += [None] * len(prompts)
            for _ in prompts:
                self.on_fallback("open")
            return
        first = len(self._texts)
        self._places += range(first, first + len(prompts))
        self._texts += prompts
        self.drafter.begin(prompts, first, max_tokens)

    def read(self, features: Tensor, start: int) -> None:
        if self._begins:
            self.drafter.read(features, start)

    def lower(self, row: int, prompt: Sequence[int], options: object) -> None:
        if (place := self._places[row]) is not None:
            self.drafter.lower(place, prompt, options)

    def propose(
        self, texts: Sequence[Sequence[int]], depth: int, sampling: Callable[[list[int]], DraftSampling | None]
    ) -> DraftTokens | None:
        """Return a draft for all rows, or None if the drafter fails or is disabled.

        Rows without drafting have an empty draft. `sampling` returns the DraftSampling for a list of engine rows.
        """
        rows = self.drafted
        if not rows or (not self.drafter.remembers and not self.breaker.allows()):
            return None
        try:
            draft = self.drafter.propose([texts[row] for row in rows], depth, sampling(rows))
        except Exception:
            self._failed()
            return None
        return draft if rows == [*range(len(texts))] else _spread(draft, rows, len(texts))

    def observe(self, outcome: VerifyOutcome) -> None:
        """Pass the outcome of a step to the drafter, for the rows with drafts."""
        if rows := self.drafted:
            try:
                self.drafter.observe(outcome if rows == [*range(len(outcome.results))] else _select(outcome, rows))
            except Exception:
                self._failed()

    def retain(self, row: int, text: Sequence[int]) -> bool:
        """Free the row of a finished text; return True if it had drafts to its end, so that the drafter cached it."""
        place, self._places[row] = self._places[row], None
        if place is None:
            return False
        self.breaker.succeeded()
        self.drafter.retain(place, text)
        last = len(self._texts) - 1
        if place != last:
            self.drafter.move_row(last, place, len(self._texts[last]))
            self._places[self._places.index(last)] = place
            self._texts[place] = self._texts[last]
        del self._texts[last]
        return True

    def move_row(self, source: int, target: int) -> None:
        """Record that the engine moved a row; the drafter's own rows do not move."""
        self._places[target], self._places[source] = self._places[source], None

    def _failed(self) -> None:
        if not self._was_logged:
            log.exception(
                "the drafter failed; its requests continue without drafts (further failures: trtspec_fallbacks_total)"
            )
            self._was_logged = True
        self.breaker.failed()
        self.on_fallback("failed")
        if self.drafter.remembers:
            self._places, self._texts = [None] * len(self._places), []


def _spread(draft: DraftTokens, rows: list[int], count: int) -> DraftTokens:
    """Return a draft for `count` rows from a draft for `rows`, empty in the other rows."""
    tokens, probs = _scatter(draft.tokens, rows, count), draft.probs
    tree = draft.tree
    if tree is not None and len(tree.parents) > 1:
        parents = np.full((count, tree.parents.shape[1]), -1, dtype=np.int64)
        parents[rows] = tree.parents
        tree = Tree(parents)
    lens = dict(zip(rows, draft.lens or [tokens.shape[1]] * len(rows), strict=True))
    return DraftTokens(
        tokens,
        None if probs is None else _scatter(probs, rows, count),
        tree,
        None if draft.tree is not None else [lens.get(row, 0) for row in range(count)],
    )


def _scatter(values: Tensor, rows: list[int], count: int) -> Tensor:
    spread = values.new_zeros((count, *values.shape[1:]))
    spread[torch.tensor(rows, device=values.device)] = values
    return spread


def _select(outcome: VerifyOutcome, rows: list[int]) -> VerifyOutcome:
    index = torch.tensor(rows, device=outcome.logits.device)
    features = None if outcome.features is None else outcome.features[index]
    own = None if outcome.own is None else [outcome.own[row] for row in rows]
    results = [outcome.results[row] for row in rows]
    return replace(outcome, results=results, logits=outcome.logits[index], features=features, own=own)
