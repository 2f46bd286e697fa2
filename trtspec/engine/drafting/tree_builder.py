# SPDX-License-Identifier: Apache-2.0
"""Builders of drafts from a head's predictions: the interface and the chain. Trees are in separate modules."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor

from trtspec.engine.drafting.base import DraftSampling, DraftTokens
from trtspec.engine.drafting.chain import ConfidenceFloor, GrowingChain
from trtspec.engine.drafting.head import FeatureHead


class TreeBuilder(ABC):
    """Builds drafts of one shape; `scratch` is the number of cache positions of the head that it needs after a text."""

    scratch: int

    @abstractmethod
    def grow(
        self, head: FeatureHead, features: Tensor, ends: list[int], depth: int, sampling: DraftSampling | None
    ) -> DraftTokens:
        """Return a draft of at most `depth` tokens in a row after each row's text.

        `features` [rows, hidden] follow each row's last pair, which is at `ends[row]` of the head's cache.
        """


class Chain(TreeBuilder):
    """A chain of the most probable tokens, or of tokens sampled from the head's distribution if the request samples."""

    def __init__(self, depth: int, floors: ConfidenceFloor) -> None:
        self.scratch, self._floors = depth, floors

    def grow(
        self, head: FeatureHead, features: Tensor, ends: list[int], depth: int, sampling: DraftSampling | None
    ) -> DraftTokens:
        """Return a chain of `depth` tokens, or fewer if the head's confidence is too low."""
        chain = GrowingChain(len(features), features.device, sampling, self._floors, head.vocabulary)
        tokens = chain.add(head.logits(features))
        for window in head.windows.singles([end + 1 for end in ends], depth - 1):
            if tokens is None:
                break
            features = head.forward(tokens.unsqueeze(1), features, window)
            tokens = chain.add(head.logits(features))
        return chain.draft()
