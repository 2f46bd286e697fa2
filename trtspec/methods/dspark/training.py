# SPDX-License-Identifier: Apache-2.0
"""Initial weights and training of a DSpark net: DFlash's net with a Markov head and a head that estimates acceptance.

The initial net is in SpecForge's format, with a zero Markov head and a confidence of 0.5. Its rank is the rank of
published nets (deepseek-ai/DeepSpec:config/dspark@afdfa7c), or less for narrow targets.

The Markov head reads the previous token of the training text: while a chain is accepted, its tokens equal the text. The
confidence at a position is trained on the probability that a token sampled there is accepted
(deepseek-ai/DeepSpec:deepspec/modeling/dspark/loss.py@afdfa7c).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from trtspec.methods.dflash import CONFIDENCE, MARKOV
from trtspec.methods.dflash.training import TrainableDFlash, initial_draft, initial_net
from trtspec.training.batches import TrainingBatch
from trtspec.training.layers import View
from trtspec.training.trainable import DraftInitializer, DraftTrainer, InitialDraft

RANK, LEAST_WIDTH = 256, 4  # the rank is at most a quarter of the target's width


def make(origin: DraftInitializer) -> InitialDraft:
    """Return a new net, in which the anchor's position drafts a token, too."""
    hidden, vocab = origin.config.hidden_size, origin.config.vocab_size
    rank = max(1, min(RANK, hidden // LEAST_WIDTH))
    net = initial_net(origin, origin.draft_len, markov_rank=rank, confidence_width=hidden + rank)
    zeros = {
        f"{MARKOV}markov_w2.weight": torch.zeros(vocab, rank),
        f"{CONFIDENCE}weight": torch.zeros(1, hidden + rank),
        f"{CONFIDENCE}bias": torch.zeros(1),
    }
    inner = {
        "projector_type": "dspark",
        "attention_mode": "gqa",
        "markov_rank": rank,
        "markov_head_type": "vanilla",
        "enable_confidence_head": True,
        "confidence_head_with_markov": True,
    }
    return initial_draft(origin, net, "dspark", "DSparkDraftModel", inner, zeros)


class TrainableDSpark(TrainableDFlash):
    """A DSpark net in any format that `methods/dflash` reads."""

    method = "dspark"

    def hidden(self, view: View, batch: TrainingBatch, features: Tensor) -> list[Tensor]:
        """Return the block's hidden states, concatenated with the Markov embeddings of the text's previous tokens."""
        states, embedding = super().hidden(view, batch, features), view[f"{self.method}.{MARKOV}markov_w1.weight"]
        previous = (F.embedding(batch.tokens_after(step), embedding) for step in range(self.passes))
        return [torch.cat(pair, -1) for pair in zip(states, previous, strict=True)]

    def logits(self, view: View, hidden: Tensor, step: int) -> Tensor:
        """Return the LM head's logits plus the Markov head's bias for the previous token."""
        states, previous = hidden[:, : self.width], hidden[:, self.width :]
        return super().logits(view, states, step) + F.linear(previous, view[f"{self.method}.{MARKOV}markov_w2.weight"])

    def confidence(self, view: View, hidden: Tensor, step: int) -> Tensor | None:
        name = f"{self.method}.{CONFIDENCE}"
        if not self.net.confidence_width:
            return None
        seen = hidden[:, : self.net.confidence_width]
        return F.linear(seen, view[f"{name}weight"], view.get(f"{name}bias")).squeeze(-1)


TRAINABLE = DraftTrainer(TrainableDSpark, make, ("layers",))
