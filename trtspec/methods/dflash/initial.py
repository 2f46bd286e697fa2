# SPDX-License-Identifier: Apache-2.0
"""Initial DFlash net in z-lab's dialect, with the target's embedding and LM head and a copy of its final norm."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from trtspec.methods.dflash.net import BlockNet
from trtspec.methods.dflash.stored import net_rules
from trtspec.training.initialization import LEAST_READ, DraftInitializer, InitialDraft, Initializer, plain_layer


def initial_net(origin: DraftInitializer, block_size: int, **further: Any) -> BlockNet:
    """Return the description of a net with this block size for the requested draft length."""
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
    """Return the initial net of a kind; `inner` are additional keys of dflash_config, `given` non-random tensors."""
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
    """Return a net whose block is the anchor and one mask per drafted token."""
    return initial_draft(origin, initial_net(origin, origin.draft_len + 1), "dflash", "DFlashDraftModel", {}, {})


MAKER = Initializer(make, ("layers",))
