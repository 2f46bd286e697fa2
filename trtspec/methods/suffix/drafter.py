# SPDX-License-Identifier: Apache-2.0
"""Suffix decoding: counts continuations of the last tokens in the text and in earlier answers, on the host.

The behavior matches arctic-inference 0.3.0 (arctic_inference/suffix_decoding/cache.py) with vLLM's proposer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trtspec.engine.device import pad_rows
from trtspec.engine.drafting.base import Drafter, DrafterConfig, DraftSampling, DraftTokens
from trtspec.engine.generation.suffixes import SuffixHistory, SuffixTree


@dataclass
class _Row:
    """The state of a request: the suffix tree of its text, and the histories of its text and its answer."""

    tree: SuffixTree
    text: SuffixHistory
    answer: SuffixHistory


class SuffixDrafter(Drafter):
    """Drafts with two suffix trees, of the request's text and of all answers; the better-scored draft is used."""

    def __init__(self, setup: DrafterConfig) -> None:
        self._device, self._options, self._most = setup.room.device, setup.options, setup.draft_shape.max_depth
        self._answers = SuffixTree(setup.options.max_tree_depth)
        self._cached: dict[SuffixHistory, None] = {}  # oldest first
        self._rows: dict[int, _Row] = {}

    def begin(self, prompts: Sequence[Sequence[int]], first_row: int, max_tokens: int) -> None:
        for row, prompt in enumerate(prompts, first_row):
            request = _Row(SuffixTree(self._options.max_tree_depth), SuffixHistory(), SuffixHistory())
            for token in prompt:
                request.tree.append(request.text, token)
            self._rows[row] = request
            self._cache(request.answer)

    def _cache(self, answer: SuffixHistory) -> None:
        """Add a new answer to the cache; evict the oldest one if the cache exceeds `max_cached_requests`."""
        if not self._options.max_cached_requests:
            return
        self._cached[answer] = None
        if len(self._cached) > self._options.max_cached_requests:
            oldest = next(iter(self._cached))
            del self._cached[oldest]
            self._answers.remove(oldest)

    def propose(self, texts: Sequence[Sequence[int]], depth: int, sampling: DraftSampling | None) -> DraftTokens:
        """Return a chain of at most `depth` tokens for each row; empty if the row's last tokens are new."""
        # truncated afterwards: the limit can affect the prediction, and a row's draft must not depend on its batch
        chains = [self._predict(row, text)[:depth] for row, text in enumerate(texts)]
        return DraftTokens(pad_rows(chains, self._device), lens=[len(chain) for chain in chains])

    def _predict(self, row: int, text: Sequence[int]) -> list[int]:
        request, options = self._rows[row], self._options
        for token in text[len(request.text.tokens) :]:
            request.tree.append(request.text, token)
            if request.answer in self._cached:
                self._answers.append(request.answer, token)
        context = text[-options.max_tree_depth :]
        guesses = (
            tree.guess(context, self._most, options.max_spec_factor, options.min_token_prob)
            for tree in (request.tree, self._answers)
        )
        return max(guesses, key=lambda guess: guess.score).tokens

    def move_row(self, source: int, target: int, length: int) -> None:
        self._rows[target] = self._rows.pop(source)


DRAFTER = SuffixDrafter
