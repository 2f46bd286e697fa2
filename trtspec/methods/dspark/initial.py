# SPDX-License-Identifier: Apache-2.0
"""A DSpark net in SpecForge's dialect: DFlash's, whose Markov head says nothing at first, and whose confidence is half.

Ranks are those of published nets (deepseek-ai/DeepSpec:config/dspark@afdfa7c), less for narrow targets.
"""

from __future__ import annotations

import torch

from trtspec.methods.dflash.initial import blank_of, net_of
from trtspec.methods.dflash.stored import CONFIDENCE, MARKOV
from trtspec.training.initialization import Blank, Maker, Origin

RANK, LEAST_WIDTH = 256, 4  # times the rank: of a narrower target the rank is a quarter of its width


def make(origin: Origin) -> Blank:
    """Return a net whose anchor drafts too."""
    hidden, vocab = origin.config.hidden_size, origin.config.vocab_size
    rank = max(1, min(RANK, hidden // LEAST_WIDTH))
    net = net_of(origin, origin.draft_len, markov_rank=rank, confidence_width=hidden + rank)
    silent = {
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
    return blank_of(origin, net, "dspark", "DSparkDraftModel", inner, silent)


MAKER = Maker(make, ("layers",))
