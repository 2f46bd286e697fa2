# SPDX-License-Identifier: Apache-2.0
"""Initial weights and training of a DFlash net (arXiv:2602.06036), with a block at every position of the answers.

The initial net is in z-lab's format. It uses the target's embedding and LM head and a copy of its final norm.

A block consists of the token at its position (the anchor) and masks. The output at each position predicts the token at
that position, or the next token if the anchor drafts, too. The layers attend to the target's hidden states before the
anchor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from trtspec.methods.base import HeadTarget
from trtspec.methods.dflash import BlockNet, describe, net_rules, read_block_net
from trtspec.training.batches import TrainingBatch
from trtspec.training.layers import BlockAttention, SharedWeights, TrainableLayer, View, linear, rms_norm
from trtspec.training.trainable import (
    LEAST_READ,
    DraftInitializer,
    DraftSource,
    DraftTrainer,
    InitialDraft,
    TrainableDraft,
    plain_layer,
)


def initial_net(origin: DraftInitializer, block_size: int, **further: Any) -> BlockNet:
    """Return the configuration of a new net; `further` are additional fields of BlockNet."""
    config = origin.config
    return BlockNet(
        dialect="",
        layer=replace(plain_layer(config), num_layers=origin.num_layers, qk_norm=True),
        block_size=block_size,
        drafts=origin.draft_len,
        mask_token=origin.unused_token,
        target_layers=origin.outputs_read(max(LEAST_READ, origin.num_layers)),
        num_target_layers=config.num_layers,
        target_hidden_size=config.hidden_size,
        draft_vocab_size=config.vocab_size,
        **further,
    )


def initial_draft(
    origin: DraftInitializer,
    net: BlockNet,
    kind: str,
    architecture: str,
    inner: dict[str, Any],
    given: Mapping[str, Tensor],
) -> InitialDraft:
    """Return the config and tensors of a new net.

    `inner` are additional keys of dflash_config. `given` are tensors with a fixed initial value; the others are random,
    except for the final norm, which is the target's.
    """
    named = {"mask_token_id": net.mask_token, "target_layer_ids": list(net.target_layers)}
    config = origin.layer_config(net.layer, architecture, net.layer.num_layers) | {
        "model_type": "qwen3",
        "block_size": net.block_size,
        "num_target_layers": net.num_target_layers,
        "dflash_config": named | inner,
    }
    tensors = origin.fill(net_rules(net, kind, given.keys()), {"norm.weight": origin.last_norm, **given})
    return InitialDraft(config, tensors)


def make(origin: DraftInitializer) -> InitialDraft:
    """Return a new net with a block of the anchor and one mask per draft token."""
    return initial_draft(origin, initial_net(origin, origin.draft_len + 1), "dflash", "DFlashDraftModel", {}, {})


class TrainableDFlash(TrainableDraft):
    """A DFlash net in any format that `methods/dflash` reads; its own embedding, if any, is frozen.

    `method` is the kind of the net and the prefix of its tensor names.
    """

    method = "dflash"

    def __init__(self, source: DraftSource) -> None:
        origin, target = source.origin, source.target
        self.net = net = read_block_net(origin, target.config.dtype, self.method)
        self.config, self.width = net.layer, net.layer.hidden_size
        self.passes = min(source.draft_len, net.drafts)
        self.aux_layers = tuple(layer + 1 for layer in net.target_layers)
        rules = describe(origin, HeadTarget(target.config, [], self.passes), self.method).rules
        self._embedding, self._head = (f"{self.method}.{name}.weight" for name in ("embed_tokens", "lm_head"))
        self.tensors = source.tensors(origin, rules, frozen=[self._embedding])
        self._borrowed = SharedWeights(target)
        if "d2t" in origin.tensors:
            self.vocab = torch.arange(net.draft_vocab_size, device=target.device) + self.tensors.tensor("d2t")

    def hidden(self, view: View, batch: TrainingBatch, features: Tensor) -> list[Tensor]:
        """Return the net's final hidden states, one tensor per drafting position of the blocks."""
        silent = self.net.block_size - self.net.drafts
        blocks = BlockAttention(batch, self.passes + silent, is_causal=self.net.is_causal)
        context = self._norm(view, linear(view, f"{self.method}.fc", features), "hidden_norm")
        anchors = batch.tokens.gather(1, blocks.anchors)
        tokens = torch.where(blocks.at == blocks.anchors, anchors, self.net.mask_token)  # [rows, count * width]
        hidden = F.embedding(tokens, view.get(self._embedding, self._borrowed.embedding))
        for number in range(self.config.num_layers):
            layer = TrainableLayer(view, f"{self.method}.layers.{number}", self.config, number)
            mixed = blocks.attend(layer, layer.heads(context), layer.norm(hidden, "input_layernorm"))
            hidden = layer.finish(hidden, mixed)
        normed = self._norm(view, hidden, "norm")
        return [blocks.step(normed, silent + step) for step in range(self.passes)]

    def logits(self, view: View, hidden: Tensor, step: int) -> Tensor:
        return F.linear(hidden, view[self._head]) if self._head in view else self._borrowed.logits(hidden)

    def _norm(self, view: View, rows: Tensor, module: str) -> Tensor:
        return rms_norm(view, f"{self.method}.{module}", rows, self.config.norm_epsilon)


TRAINABLE = DraftTrainer(TrainableDFlash, make, ("layers",))
