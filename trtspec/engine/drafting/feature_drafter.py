# SPDX-License-Identifier: Apache-2.0
"""Drafting with a head that predicts the target's next features.

The head's cache keeps only pairs with the target's features. The features of a step's accepted path wait until the
token after them is known, and go through the head when the next draft begins. Pairs of drafted tokens are stored after
them in the cache and are then overwritten.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from trtspec.engine.drafting.base import Drafter, DraftSampling, DraftTokens, VerifyOutcome
from trtspec.engine.drafting.head import FeatureHead
from trtspec.engine.drafting.tree_builder import TreeBuilder


class FeaturePairDrafter(Drafter):
    """Keeps a head's cache in sync with the text: prompts are processed, and accepted features wait for `_take`."""

    def __init__(self, head: FeatureHead) -> None:
        self._head = head
        self.aux_layers = head.aux_layers
        self._waiting: dict[int, list[Tensor]] = {}  # by row: hidden states of the target [n, aux_layers * hidden]
        self._prompts: Sequence[Sequence[int]] = ()
        self._first_row = 0

    def begin(self, prompts: Sequence[Sequence[int]], first_row: int, max_tokens: int) -> None:
        """Keep the prompts until the target has processed them."""
        self._prompts, self._first_row = prompts, first_row

    def read(self, features: Tensor, start: int) -> None:
        """Write the pairs of a chunk into the head's cache.

        The token after a prompt's last feature is unknown: its pair and later ones are placeholders, overwritten later.
        """
        rows, width, _ = features.shape
        following = [[*prompt[start + 1 : start + 1 + width]] for prompt in self._prompts]
        window = self._head.windows.chain([start] * rows, width, self._first_row)
        self._head.forward(self._padded(following, width), self._head.fuse(features.flatten(0, 1)), window)
        for row, prompt in enumerate(self._prompts):
            if start < len(prompt) <= start + width:
                at = len(prompt) - 1 - start
                self._waiting[self._first_row + row] = [features[row, at : at + 1].clone()]

    def _take(self, rows: int) -> list[Tensor]:
        """Remove and return each row's waiting hidden states [n, aux_layers * hidden]."""
        waiting = [torch.cat(self._waiting[row]) for row in range(rows)]
        self._waiting = {row: [] for row in range(rows)}
        return waiting

    def observe(self, outcome: VerifyOutcome) -> None:
        """Keep the hidden states of each accepted path until the token after them is known."""
        for row, accepted in enumerate(outcome.accepted_features()):
            self._waiting[row].append(accepted)

    def move_row(self, source: int, target: int, length: int) -> None:
        """Move the row's cache and its waiting hidden states."""
        self._head.cache.move_row(source, target, length)
        self._waiting[target] = self._waiting[source]

    def _padded(self, tokens: Sequence[Sequence[int]], width: int) -> Tensor:
        return torch.tensor([[*row, *[0] * (width - len(row))] for row in tokens], device=self._head.device)


class FeatureDrafter(FeaturePairDrafter):
    """Drafts with a head, token by token; a `TreeBuilder` determines the shape of the draft."""

    def __init__(self, head: FeatureHead, builder: TreeBuilder) -> None:
        super().__init__(head)
        self._builder = builder

    def propose(self, texts: Sequence[Sequence[int]], depth: int, sampling: DraftSampling | None) -> DraftTokens:
        """Process the waiting features, and grow the draft from the feature that the head predicts after them."""
        head, waiting = self._head, self._take(len(texts))
        counts = [len(features) for features in waiting]
        features = pad_sequence(waiting, batch_first=True)
        width = features.shape[1]
        tokens = self._padded([text[-count:] for text, count in zip(texts, counts, strict=True)], width)
        window = head.windows.chain([len(text) - 1 - count for text, count in zip(texts, counts, strict=True)], width)
        found = head.forward(tokens, head.fuse(features.flatten(0, 1)), window)
        last = [row * width + count - 1 for row, count in enumerate(counts)]
        return self._builder.grow(head, found[last], [len(text) - 2 for text in texts], depth, sampling)
