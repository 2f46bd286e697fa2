# SPDX-License-Identifier: Apache-2.0
"""Initial DSpark net in SpecForge's dialect: a DFlash net, a zero Markov head, and a confidence of 0.5.

The rank is from published nets (deepseek-ai/DeepSpec:config/dspark@afdfa7c), smaller for narrow targets.
"""

from __future__ import annotations

import torch

from trtspec.methods.dflash.initial import initial_draft, initial_net
from trtspec.methods.dflash.stored import CONFIDENCE, MARKOV
from trtspec.training.initialization import DraftInitializer, InitialDraft, Initializer

RANK, LEAST_WIDTH = 256, 4  # the rank is at most a quarter of the target's width


def make(origin: DraftInitializer) -> InitialDraft:
    """Return a net that also drafts at the anchor."""
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


MAKER = Initializer(make, ("layers",))
