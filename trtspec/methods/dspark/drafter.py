# SPDX-License-Identifier: Apache-2.0
"""DSpark: drafts from a block net, with a bias on each token's logits from the previous token (the Markov head).

If the net has a confidence head, its estimate decides where a draft ends, not the draft's highest probability.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from trtspec.engine.drafting.base import (
    NO_FLOOR,
    ConfidenceFloor,
    DrafterConfig,
    DraftSampling,
    DraftTokens,
    SampledChain,
    max_probability,
)
from trtspec.engine.model.weights import WeightLoader
from trtspec.methods.dflash import CONFIDENCE, MARKOV
from trtspec.methods.dflash.drafter import BlockDrafter

NAME = "dspark"


class ConfidenceHead:
    """Estimates the probability that the target accepts the draft token of a position, before that token is chosen.

    The input is the position's hidden state and, with `reads_markov`, the Markov embedding of the previous token.
    """

    def __init__(self, weights: WeightLoader, reads_markov: bool) -> None:
        name, self._reads_markov = f"{NAME}.{CONFIDENCE}", reads_markov
        self._weight = weights.tensor(f"{name}weight", torch.float32)
        self._bias = weights.tensor(f"{name}bias", torch.float32) if f"{name}bias" in weights else None

    def __call__(self, hidden: Tensor, embedded: Tensor) -> Tensor:
        """Return acceptance probabilities [...] for hidden states [..., hidden] and Markov embeddings [..., rank]."""
        seen = torch.cat([hidden, embedded], -1) if self._reads_markov else hidden
        return torch.sigmoid(F.linear(seen.float(), self._weight, self._bias)).squeeze(-1)


class DSparkDrafter(BlockDrafter):
    """Drafts a chain in which each token depends on the block's hidden states and the previous token."""

    def __init__(self, setup: DrafterConfig) -> None:
        super().__init__(setup, NAME)
        weights, width = self.network.weights, self.network.net.confidence_width
        # the Markov head: a low-rank map from a token to a bias on the logits of the next token
        self._markov_embedding = weights.tensor(f"{NAME}.{MARKOV}markov_w1.weight")
        self._markov_bias = weights.linear(f"{NAME}.{MARKOV}markov_w2")
        is_used = width and setup.confidence  # the head is used only with a confidence bound
        self._confidence = ConfidenceHead(weights, width > self.network.config.hidden_size) if is_used else None
        self._floors = ConfidenceFloor(chain=setup.confidence)

    def propose(self, texts: Sequence[Sequence[int]], depth: int, sampling: DraftSampling | None) -> DraftTokens:
        hidden, rows = self._fill(texts, depth), len(texts)
        logits = self.network.lm_head(hidden.flatten(0, 1)).view(rows, depth, -1)
        chain = SampledChain(rows, hidden.device, sampling, self.network.vocabulary)
        tokens = torch.tensor([text[-1] for text in texts], device=hidden.device)
        embedded, biased = list[Tensor](), list[Tensor]()
        for position in range(depth):
            embedded.append(F.embedding(tokens, self._markov_embedding))
            biased.append(self._markov_bias.add_to(logits[:, position], embedded[-1]))
            tokens = chain.add(biased[-1])
        if self._floors == NO_FLOOR:
            return chain.draft([depth] * rows)
        if self._confidence is None:
            return chain.draft(self._floors.lens(max_probability(torch.stack(biased, 1))))
        return chain.draft(self._floors.lens(self._confidence(hidden, torch.stack(embedded, 1))))


DRAFTER = DSparkDrafter
