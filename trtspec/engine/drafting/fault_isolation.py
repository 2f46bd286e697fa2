# SPDX-License-Identifier: Apache-2.0
"""What stands between the engine and its drafter, so that a drafter which fails costs drafts and no text.

After an exception nothing is known of what the drafter holds of its rows: those that run go on without drafts to their
ends. Rows that begin later are drafted for again, unless it failed often. The drafter therefore has rows of its own,
0, 1, ... of those that are drafted for; while it never failed they are the engine's.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from trtspec.engine.drafting.base import Draft, Drafter, DraftSampling, Outcome
from trtspec.engine.generation.circuit_breaker import Breaker
from trtspec.kernels.tree import Tree

log = logging.getLogger(__name__)


@dataclass
class Guard:
    """A drafter as the engine calls it, by the engine's rows."""

    drafter: Drafter
    breaker: Breaker = field(default_factory=Breaker)
    on_fallback: Callable[[str], None] = lambda reason: None
    _places: list[int | None] = field(default_factory=list)  # of each row: the drafter's, None for one without drafts
    _texts: list[Sequence[int]] = field(default_factory=list)  # of the drafter's rows, as they grow
    _begins: bool = True  # whether the rows that are begun are drafted for
    _was_logged: bool = False

    def tell(self, on_fallback: Callable[[str], None], on_open: Callable[[bool], None]) -> None:
        """Tell from now on why texts go on without the drafter, and whether it is left alone."""
        self.on_fallback, self.breaker.on_change = on_fallback, on_open

    @property
    def drafted(self) -> list[int]:
        """Return the rows that are drafted for, in the order of the drafter's."""
        places = {place: row for row, place in enumerate(self._places) if place is not None}
        return [places[place] for place in range(len(places))]

    def begin(self, prompts: Sequence[Sequence[int]], first_row: int, max_tokens: int) -> None:
        """Process the prompts of new requests, which become the last rows; those that were there are given up."""
        given_up = len(self._places[first_row:]) - self._places[first_row:].count(None)
        del self._places[first_row:]
        del self._texts[len(self._texts) - given_up :]
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
        """Process the target's features of new prompts."""
        if self._begins:
            self.drafter.read(features, start)

    def lower(self, row: int, prompt: Sequence[int], options: object) -> None:
        """Give a new row options of its own."""
        if (place := self._places[row]) is not None:
            self.drafter.lower(place, prompt, options)

    def propose(
        self, texts: Sequence[Sequence[int]], depth: int, sampling: Callable[[list[int]], DraftSampling | None]
    ) -> Draft | None:
        """Draft after the texts of those rows that are drafted for; None where the drafter fails, or is left out.

        `sampling` says how some rows sample.
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

    def observe(self, outcome: Outcome) -> None:
        """Process the outcome of a step, of those rows that are drafted for."""
        if rows := self.drafted:
            try:
                self.drafter.observe(outcome if rows == [*range(len(outcome.results))] else _part(outcome, rows))
            except Exception:
                self._failed()

    def keep(self, row: int, text: Sequence[int]) -> bool:
        """Free the row of a text that ended; returns whether it was drafted for to its end, and is kept."""
        place, self._places[row] = self._places[row], None
        if place is None:
            return False
        self.breaker.succeeded()
        self.drafter.keep(place, text)
        last = len(self._texts) - 1
        if place != last:
            self.drafter.move_row(last, place, len(self._texts[last]))
            self._places[self._places.index(last)] = place
            self._texts[place] = self._texts[last]
        del self._texts[last]
        return True

    def move_row(self, source: int, target: int) -> None:
        """Let a row become another; the drafter's own rows stay where they are."""
        self._places[target], self._places[source] = self._places[source], None

    def _failed(self) -> None:
        if not self._was_logged:
            log.exception(
                "the drafter failed, and its texts go on without; trtspec_fallbacks_total counts it from now on"
            )
            self._was_logged = True
        self.breaker.failed()
        self.on_fallback("failed")
        if self.drafter.remembers:
            self._places, self._texts = [None] * len(self._places), []


def _spread(draft: Draft, rows: list[int], count: int) -> Draft:
    """Return a draft of some rows as one of all, which has nothing in the others."""
    tokens, probs = _among(draft.tokens, rows, count), draft.probs
    tree = draft.tree
    if tree is not None and len(tree.parents) > 1:
        parents = np.full((count, tree.parents.shape[1]), -1, dtype=np.int64)
        parents[rows] = tree.parents
        tree = Tree(parents)
    lens = dict(zip(rows, draft.lens or [tokens.shape[1]] * len(rows), strict=True))
    return Draft(
        tokens,
        None if probs is None else _among(probs, rows, count),
        tree,
        None if draft.tree is not None else [lens.get(row, 0) for row in range(count)],
    )


def _among(values: Tensor, rows: list[int], count: int) -> Tensor:
    spread = values.new_zeros((count, *values.shape[1:]))
    spread[torch.tensor(rows, device=values.device)] = values
    return spread


def _part(outcome: Outcome, rows: list[int]) -> Outcome:
    """Return the outcome of some rows."""
    index = torch.tensor(rows, device=outcome.logits.device)
    features = None if outcome.features is None else outcome.features[index]
    return replace(
        outcome, results=[outcome.results[row] for row in rows], logits=outcome.logits[index], features=features
    )
