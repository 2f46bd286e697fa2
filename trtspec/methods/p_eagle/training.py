# SPDX-License-Identifier: Apache-2.0
"""Initial weights and training of a P-EAGLE net (arXiv:2602.01469), with mask tokens after every answer position.

The initial net is in SpecForge's format: an EAGLE-3 head of several layers with a hidden state for mask tokens.

As in EAGLE-3, the pair of hidden state and token before the position drafts the first token. Each further token is
drafted by a mask, which is the mask token with a learned hidden state. A mask attends to the pairs of the text and to
earlier masks.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from trtspec.checkpoints.model_config import ModelConfig
from trtspec.checkpoints.rules import Rule
from trtspec.checkpoints.source import Source
from trtspec.core.errors import CheckpointError
from trtspec.engine.model.layer_pass import attend_heads
from trtspec.methods.base import HeadTarget, Options
from trtspec.methods.draft_head import mask_token
from trtspec.methods.eagle3 import LAYER, Eagle3Names, decoder_reader, head_rules
from trtspec.methods.eagle3.training import TrainableEagle3, initial_config, initial_head, initial_tensors
from trtspec.methods.p_eagle import NAME, further_rules, read_head
from trtspec.training.batches import TrainingBatch
from trtspec.training.layers import BlockAttention, TrainableLayer, View
from trtspec.training.trainable import DraftInitializer, DraftSource, DraftTrainer, InitialDraft


def make(origin: DraftInitializer) -> InitialDraft:
    head = initial_head(origin, origin.num_layers)
    state = (1, 1, len(head.aux_layers) * head.target_hidden_size)
    rules = [*head_rules(head), *further_rules(head, state, Eagle3Names())]
    config = initial_config(origin, "PEagleDraftModel", origin.num_layers) | {"mask_token_id": origin.unused_token}
    return InitialDraft(config, origin.fill(rules, initial_tensors(origin)))


class TrainablePEagle(TrainableEagle3):
    """A P-EAGLE net of several layers."""

    def __init__(self, source: DraftSource) -> None:
        super().__init__(source)
        origin, token = source.origin, mask_token(source.origin)
        if token is None:
            raise CheckpointError(
                "lacks a mask token", where=str(origin.root), hint="set mask_token_id in its config.json"
            )
        self.passes, self._mask = source.draft_len, token
        self._num_layers = decoder_reader(origin.reader).positive("num_hidden_layers", 1)

    def hidden(self, view: View, batch: TrainingBatch, features: Tensor) -> list[Tensor]:
        """Return the hidden states of each draft step: at the pair before each position, then at each mask after it."""
        embedded = self._embed(view, torch.roll(batch.tokens, -1, 1))
        known, blocks = self._fuse(view, features), BlockAttention(batch, max(1, self.passes - 1), is_causal=True)
        masks = self._fuse(view, view[f"{NAME}.mask_hidden"].view(1, 1, -1)).expand(*blocks.at.shape, -1)
        for number in range(self._num_layers):
            layer = TrainableLayer(view, f"{NAME}.layers.{number}" if number else LAYER, self.head.layer)
            if number:
                reads = [(layer.norm(each, "input_layernorm"), each) for each in (known, masks)]
            else:
                mask = self._embed(view, torch.full_like(blocks.at, self._mask))
                reads = [self._read(layer, *each) for each in ((embedded, known), (mask, masks))]
            (text, known), (own, masks) = reads
            heads = layer.heads(text)
            masks = layer.finish(masks, blocks.attend(layer, heads, own))
            known = layer.finish(known, attend_heads(*heads, layer.config, 0).transpose(1, 2).flatten(2))
        first = known.flatten(0, 1)[batch.flat(1)]
        outputs = [first, *(blocks.step(masks, step) for step in range(self.passes - 1))]
        return [self._norm(view, each, "norm") for each in outputs] if self.head.norm_output else outputs

    def _rules(self, origin: Source, names: Eagle3Names, target: ModelConfig) -> Sequence[Rule]:
        return read_head(origin, HeadTarget(target, [], 1), Options()).rules


TRAINABLE = DraftTrainer(TrainablePEagle, make, ("layers", "draft_vocab"))
