# SPDX-License-Identifier: Apache-2.0
"""Suffix decoding: counts what followed the text's last tokens in it and in earlier answers; no work on the device.

As arctic-inference 0.3.0 (arctic_inference/suffix_decoding/cache.py) and vLLM's proposer around it do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from trtspec.engine.drafting.base import Draft, Drafter, DraftSampling, Setup
from trtspec.engine.generation.suffix_tree import Guess, Said, SuffixTree


@dataclass
class _Row:
    """A request: the tree of its own text, and its answer in the tree of all answers."""

    tree: SuffixTree
    text: Said
    answer: Said


class SuffixDrafter(Drafter):
    """Drafts the better guess of two trees: one of a request's own text, and one of all answers."""

    def __init__(self, setup: Setup) -> None:
        self._device, self._options, self._most = setup.room.device, setup.options, setup.draft_shape.max_depth
        self._answers = SuffixTree(setup.options.max_tree_depth)
        self._cached: dict[Said, None] = {}  # the oldest first
        self._rows: dict[int, _Row] = {}

    def begin(self, prompts: Sequence[Sequence[int]], first_row: int, max_tokens: int) -> None:
        """Count the prompts' strings, each in a tree of its own."""
        for row, prompt in enumerate(prompts, first_row):
            begun = _Row(SuffixTree(self._options.max_tree_depth), Said(), Said())
            for token in prompt:
                begun.tree.append(begun.text, token)
            self._rows[row] = begun
            self._cache(begun.answer)

    def _cache(self, answer: Said) -> None:
        """Keep an answer that begins; beyond the limit the oldest one is forgotten."""
        if not self._options.max_cached_requests:
            return
        self._cached[answer] = None
        if len(self._cached) > self._options.max_cached_requests:
            oldest = next(iter(self._cached))
            del self._cached[oldest]
            self._answers.remove(oldest)

    def propose(self, texts: Sequence[Sequence[int]], depth: int, sampling: DraftSampling | None) -> Draft:
        """Return a chain of at most `depth` tokens for each row, empty where nothing like its last tokens was said."""
        # cut afterwards: another limit may choose another guess, and a row's draft is not to depend on its batch
        chains = [self._guess(row, text)[:depth] for row, text in enumerate(texts)]
        lens = [len(chain) for chain in chains]
        width = max(lens)
        padded = [[*chain, *[0] * (width - len(chain))] for chain in chains]
        return Draft(torch.tensor(padded, dtype=torch.int64, device=self._device), lens=lens)

    def _guess(self, row: int, text: Sequence[int]) -> list[int]:
        asked, found = self._rows[row], self._options
        for token in text[len(asked.text.tokens) :]:
            asked.tree.append(asked.text, token)
            if asked.answer in self._cached:
                self._answers.append(asked.answer, token)
        context = text[-found.max_tree_depth :]
        own, others = (
            tree.guess(context, self._most, found.max_spec_factor, found.min_token_prob)
            for tree in (asked.tree, self._answers)
        )
        return _better(own, others).tokens

    def move_row(self, source: int, target: int, length: int) -> None:
        """Move the row's trees."""
        self._rows[target] = self._rows.pop(source)


def _better(own: Guess, others: Guess) -> Guess:
    return own if own.score >= others.score else others


DRAFTER = SuffixDrafter
