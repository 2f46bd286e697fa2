# SPDX-License-Identifier: Apache-2.0
"""How a head's guesses become a draft. Here a chain; the trees have modules of their own."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from trtspec.torch_engine.drafting.base import Draft, DraftSampling
from trtspec.torch_engine.drafting.head import FeatureHead


class TreeBuilder(ABC):
    """Lets drafts of one shape grow. `scratch` is how many places of the head's cache it needs behind a text."""

    scratch: int

    @abstractmethod
    def grow(
        self, head: FeatureHead, features: Tensor, ends: list[int], depth: int, sampling: DraftSampling | None
    ) -> Draft:
        """Return a draft of at most `depth` tokens, one after another, behind each row's text.

        `features` [rows, hidden] followed on each row's last pair, which stands at `ends[row]` of the head's cache.
        """


class Chain(TreeBuilder):
    """One token after another: the likeliest ones, or drawn from the head's distribution as the request samples."""

    def __init__(self, depth: int) -> None:
        self.scratch = depth

    def grow(
        self, head: FeatureHead, features: Tensor, ends: list[int], depth: int, sampling: DraftSampling | None
    ) -> Draft:
        """Return a chain of `depth` tokens."""
        chain, distributions = [], []
        windows = head.windows.singles([end + 1 for end in ends], depth - 1)
        for step in range(depth):
            logits = head.logits(features)
            if sampling is None:
                tokens = logits.argmax(-1)
            else:
                probs = sampling.params.probs(logits)
                tokens = sampling.draw(probs, step)
                distributions.append(head.spread(probs))
            chain.append(head.to_target(tokens))
            if step < len(windows):
                features = head.forward(chain[-1].unsqueeze(1), features, windows[step])
        return Draft(torch.stack(chain, 1), torch.stack(distributions, 1) if distributions else None)
