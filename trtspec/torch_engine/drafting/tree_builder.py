# SPDX-License-Identifier: Apache-2.0
"""How a net's guesses become a draft. Here a chain; the trees have modules of their own."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from trtspec.torch_engine.drafting.base import Draft, Sampling
from trtspec.torch_engine.drafting.head import Net


class TreeBuilder(ABC):
    """Lets drafts of one shape grow. `scratch` is how many places of the net's cache it needs behind a text."""

    scratch: int

    @abstractmethod
    def grow(self, net: Net, features: Tensor, ends: list[int], depth: int, sampling: Sampling | None) -> Draft:
        """Return a draft of at most `depth` tokens, one after another, behind each row's text.

        `features` [rows, hidden] followed on each row's last pair, which stands at `ends[row]` of the net's cache.
        """


class Chain(TreeBuilder):
    """One token after another: the likeliest ones, or drawn from the net's law as the request samples."""

    def __init__(self, depth: int) -> None:
        self.scratch = depth

    def grow(self, net: Net, features: Tensor, ends: list[int], depth: int, sampling: Sampling | None) -> Draft:
        """Return a chain of `depth` tokens."""
        chain, laws = [], []
        windows = net.windows.singles([end + 1 for end in ends], depth - 1)
        for step in range(depth):
            logits = net.logits(features)
            if sampling is None:
                tokens = logits.argmax(-1)
            else:
                probs = sampling.warp.probs(logits)
                tokens = sampling.draw(probs, step)
                laws.append(net.spread(probs))
            chain.append(net.to_target(tokens))
            if step < len(windows):
                features = net.forward(chain[-1].unsqueeze(1), features, windows[step])
        return Draft(torch.stack(chain, 1), torch.stack(laws, 1) if laws else None)
