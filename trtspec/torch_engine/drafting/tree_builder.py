# SPDX-License-Identifier: Apache-2.0
"""Builders of drafts from a head's predictions. The chain is here; trees have modules of their own."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from trtspec.torch_engine.drafting.base import Draft, DraftSampling
from trtspec.torch_engine.drafting.head import FeatureHead


class TreeBuilder(ABC):
    """Builds drafts of one shape. `scratch` is how many positions of the head's cache it needs after a text."""

    scratch: int

    @abstractmethod
    def grow(
        self, head: FeatureHead, features: Tensor, ends: list[int], depth: int, sampling: DraftSampling | None
    ) -> Draft:
        """Return a draft of at most `depth` tokens in a row after each row's text.

        `features` [rows, hidden] follow each row's last pair, which is at `ends[row]` of the head's cache.
        """


class Chain(TreeBuilder):
    """A chain of the most probable tokens, or of tokens sampled from the head's distribution as the request samples."""

    def __init__(self, depth: int) -> None:
        self.scratch = depth

    def grow(
        self, head: FeatureHead, features: Tensor, ends: list[int], depth: int, sampling: DraftSampling | None
    ) -> Draft:
        """Return a chain of `depth` tokens."""
        chain, all_probs = [], []
        windows = head.windows.singles([end + 1 for end in ends], depth - 1)
        for step in range(depth):
            logits = head.logits(features)
            if sampling is None:
                tokens = logits.argmax(-1)
            else:
                probs = sampling.params.probs(logits)
                tokens = sampling.draw(probs, step)
                all_probs.append(head.spread(probs))
            chain.append(head.to_target(tokens))
            if step < len(windows):
                features = head.forward(chain[-1].unsqueeze(1), features, windows[step])
        return Draft(torch.stack(chain, 1), torch.stack(all_probs, 1) if all_probs else None)
