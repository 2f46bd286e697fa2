# SPDX-License-Identifier: Apache-2.0
"""EAGLE: drafts with one layer that predicts the target's next hidden state (arXiv:2401.15077)."""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from trtspec.checkpoints.trtllm import read_config
from trtspec.engine.drafting.base import BatchShape, DrafterConfig
from trtspec.engine.drafting.feature_drafters import DynamicTree, FeatureDrafter, FeatureHead, StaticTree, TreeBuilder
from trtspec.engine.model.decoder import FINAL, Decoder, attend
from trtspec.engine.model.layers import Norm
from trtspec.engine.model.positions import Window
from trtspec.engine.model.weights import WeightLoader
from trtspec.methods.draft_head import stored_section
from trtspec.methods.eagle import NET_CONFIG, NETS, head_rules

# an engine has an identical head for each level of the tree; the first one is used
_NET = f"{NETS}.0.drafter"


class EagleHead(FeatureHead):
    """The EAGLE head in a target's checkpoint; it uses the target's LM head."""

    aux_layers = (FINAL,)

    def __init__(self, target: Decoder, room: BatchShape) -> None:
        checkpoint = target.checkpoint
        section = stored_section(checkpoint, NET_CONFIG, "an EAGLE head", "eagle")
        config = read_config(section, checkpoint.ranks[-1].keys(), f"{_NET}.layers.0.")
        super().__init__(config, room)
        weights = WeightLoader(checkpoint, head_rules(config, _NET), room.device, room.dtype)
        embedding = weights.tensor(f"{_NET}.vocab_embedding.weight")
        # usually a copy of the target's embedding, which is then shared
        self._embedding = target.embedding if torch.equal(embedding, target.embedding) else embedding
        self._fc = weights.linear(f"{_NET}.fc")
        self._block = weights.block(f"{_NET}.layers.0", config)
        self._norm = Norm(config.hidden_size, config.norm_epsilon, room.device)
        self._lm_head = target.lm_head

    def fuse(self, hidden_states: Tensor) -> Tensor:
        """Return the target's hidden states unchanged: an EAGLE head reads only the last layer's."""
        return hidden_states

    def forward(self, tokens: Tensor, features: Tensor, window: Window) -> Tensor:
        block = self._block
        hidden = self._fc(torch.cat([F.embedding(tokens.flatten(), self._embedding), features], 1))
        hidden = block.dense.add_to(hidden, attend(block.qkv(hidden), block, 0, window, self.cache, self.config))
        return block.mlp.add_to(hidden, self._norm(hidden, block.post_norm))

    def logits(self, features: Tensor) -> Tensor:
        return self._lm_head(features)


class EagleDrafter(FeatureDrafter):
    """Drafts a static or dynamic tree with an EAGLE head."""

    def __init__(self, setup: DrafterConfig) -> None:
        room, options = setup.room, setup.options
        builder: TreeBuilder = (
            DynamicTree(*options.growth) if options.growth else StaticTree(options.paths, room.device)
        )
        super().__init__(EagleHead(setup.target, replace(room, max_len=room.max_len + builder.scratch)), builder)


DRAFTER = EagleDrafter
