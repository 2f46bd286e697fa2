# SPDX-License-Identifier: Apache-2.0
"""EAGLE-3: drafts with one layer that reads hidden states of several target layers (arXiv:2503.01840)."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from trtspec.engine.drafting.base import BatchShape, ConfidenceFloor, DrafterConfig, SmallerVocabulary
from trtspec.engine.drafting.feature_drafters import Chain, DynamicTree, FeatureDrafter, FeatureHead, TreeBuilder
from trtspec.engine.model.decoder import Decoder, attend
from trtspec.engine.model.layers import Block, Norm
from trtspec.engine.model.positions import Window
from trtspec.engine.model.weights import WeightLoader
from trtspec.methods.eagle3 import LAYER, NAME, head_rules, stored_head


class Eagle3Head(FeatureHead):
    """The EAGLE-3 head in a target's checkpoint; a missing embedding or LM head is taken from the target."""

    what, method = "an EAGLE-3 head", NAME

    def __init__(self, target: Decoder, room: BatchShape) -> None:
        checkpoint = target.checkpoint
        self.head = head = stored_head(checkpoint, self.what, self.method)
        super().__init__(head.layer, room)
        self.aux_layers = head.aux_layers
        self._norm_output, self._norm_before_residual = head.norm_output, head.norm_before_residual
        weights = WeightLoader(checkpoint, head_rules(head), room.device, room.dtype)
        epsilon = head.layer.norm_epsilon
        fuse_norms = [weights.norm(f"{NAME}.{module}") for module in head.fuse_norms]
        self._fuse_norms = [partial(Norm(len(each), epsilon, room.device), weight=each) for each in fuse_norms]
        self._fc = weights.linear(f"{NAME}.fc")
        self._embedding = weights.tensor(f"{NAME}.vocab_embedding.weight") if head.own_embedding else target.embedding
        self._input_norm = weights.norm(f"{LAYER}.input_layernorm")
        self._hidden_norm = weights.norm(f"{LAYER}.hidden_norm")
        self._block = weights.block(LAYER, head.layer)
        self._further: list[tuple[Tensor, Block]] = []  # the layers after the first, each with its input norm
        self._norm = Norm(head.layer.hidden_size, epsilon, room.device)
        self._last_norm = weights.norm(f"{NAME}.norm")
        self._lm_head = weights.linear(f"{NAME}.lm_head") if head.own_head else target.lm_head
        if head.maps_ids:
            self.vocabulary = SmallerVocabulary(weights.target_ids(f"{NAME}.d2t"), head.target_vocab_size)

    def fuse(self, hidden_states: Tensor) -> Tensor:
        if self._fuse_norms:
            chunks = hidden_states.chunk(len(self._fuse_norms), -1)
            hidden_states = torch.cat([norm(chunk) for norm, chunk in zip(self._fuse_norms, chunks, strict=True)], -1)
        return self._fc(hidden_states)

    def forward(self, tokens: Tensor, features: Tensor, window: Window) -> Tensor:
        """Return the features for the next pass: the last layer's output, after the final norm with `norm_output`."""
        block, embedded = self._block, F.embedding(tokens.flatten(), self._embedding)
        normed = self._norm(features, self._hidden_norm)
        qkv = block.qkv(torch.cat([self._norm(embedded, self._input_norm), normed], -1))
        residual = normed if self._norm_before_residual else features
        hidden = block.dense.add_to(residual, attend(qkv, block, 0, window, self.cache, self.config))
        hidden = block.mlp.add_to(hidden, self._norm(hidden, block.post_norm))
        for number, (norm, block) in enumerate(self._further, 1):
            mixed = attend(block.qkv(self._norm(hidden, norm)), block, number, window, self.cache, self.config)
            hidden = block.dense.add_to(hidden, mixed)
            hidden = block.mlp.add_to(hidden, self._norm(hidden, block.post_norm))
        return self._norm(hidden, self._last_norm) if self._norm_output else hidden

    def logits(self, features: Tensor) -> Tensor:
        return self._lm_head(features if self._norm_output else self._norm(features, self._last_norm))


class Eagle3Drafter(FeatureDrafter):
    """Drafts a chain, or EAGLE-2's dynamic tree if `top_k` and `nodes` are set."""

    def __init__(self, setup: DrafterConfig) -> None:
        top_k, draft_shape = setup.options.top_k, setup.draft_shape
        builder: TreeBuilder = Chain(draft_shape.max_depth, ConfidenceFloor(chain=setup.confidence))
        if top_k is not None:
            builder = DynamicTree(top_k, draft_shape.max_depth, draft_shape.max_tokens)
        room = replace(setup.room, max_len=setup.room.max_len + builder.scratch)
        super().__init__(Eagle3Head(setup.target, room), builder)


DRAFTER = Eagle3Drafter
