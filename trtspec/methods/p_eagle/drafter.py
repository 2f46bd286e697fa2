# SPDX-License-Identifier: Apache-2.0
"""P-EAGLE: drafts a chain in one pass with an EAGLE-3 net of several layers and mask tokens after the text.

At mask tokens, a learned hidden state replaces the target's (arXiv:2602.01469).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from trtspec.engine.device import pad_rows
from trtspec.engine.drafting.base import (
    BatchShape,
    ConfidenceFloor,
    DrafterConfig,
    DraftSampling,
    DraftTokens,
    draft_parallel,
)
from trtspec.engine.drafting.feature_drafters import FeaturePairDrafter
from trtspec.engine.model.decoder import Decoder
from trtspec.engine.model.weights import WeightLoader
from trtspec.methods.draft_head import stored_section
from trtspec.methods.eagle3 import Eagle3Names
from trtspec.methods.eagle3.drafter import Eagle3Head
from trtspec.methods.p_eagle import NAME, further_rules


class ParallelHead(Eagle3Head):
    """The P-EAGLE net in a target's checkpoint; mask positions read `mask_token` and `mask_feature` [1, hidden]."""

    what, method = "a P-EAGLE net", NAME

    def __init__(self, target: Decoder, room: BatchShape) -> None:
        checkpoint = target.checkpoint
        section = stored_section(checkpoint, NAME, self.what, self.method)
        super().__init__(target, room)
        head = self.head
        rules = further_rules(head, tuple(section.get("mask_hidden", list)), Eagle3Names())
        weights = WeightLoader(checkpoint, rules, room.device, room.dtype)
        names = [f"{NAME}.layers.{number}" for number in range(1, head.layer.num_layers)]
        self._further = [(weights.norm(f"{name}.input_layernorm"), weights.block(name, head.layer)) for name in names]
        self.mask_token = section.get("mask_token", int)
        self.mask_feature = self.fuse(weights.tensor(f"{NAME}.mask_hidden").view(1, -1))


class ParallelFeatureDrafter(FeaturePairDrafter):
    """Drafts a chain in the same pass that processes the queued hidden states."""

    _head: ParallelHead

    def __init__(self, setup: DrafterConfig) -> None:
        room = replace(setup.room, max_len=setup.room.max_len + setup.draft_shape.max_depth)
        super().__init__(ParallelHead(setup.target, room))
        self._floors = ConfidenceFloor(chain=setup.confidence)

    def propose(self, texts: Sequence[Sequence[int]], depth: int, sampling: DraftSampling | None) -> DraftTokens:
        """Draft `depth` tokens per row: one after its last pair of token and feature, and one after each mask."""
        head, waiting = self._head, self._take(len(texts))
        counts = [len(states) for states in waiting]
        width = max(counts) + depth - 1
        known = [text[-count:] for text, count in zip(texts, counts, strict=True)]
        tokens = pad_rows(known, head.device, width, fill=head.mask_token)
        features = [
            torch.cat([head.fuse(states), head.mask_feature.expand(width - len(states), -1)]) for states in waiting
        ]
        starts = [len(text) - 1 - count for text, count in zip(texts, counts, strict=True)]
        found = head.forward(tokens, torch.cat(features), head.windows.chain(starts, width))
        at = [row * width + count - 1 + step for row, count in enumerate(counts) for step in range(depth)]
        logits = head.logits(found[at]).view(len(texts), depth, -1)
        return draft_parallel(logits, sampling, self._floors, head.vocabulary)


DRAFTER = ParallelFeatureDrafter
