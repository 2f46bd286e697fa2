# SPDX-License-Identifier: Apache-2.0
"""Initial EAGLE-3 head in SpecForge's dialect, with copies of the target's LM head and final norm.

It uses the target's embedding.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from trtspec.methods.eagle3 import AUX_LAYERS
from trtspec.methods.eagle3.head import Eagle3HeadConfig, Eagle3Names, head_rules
from trtspec.training.initialization import DraftInitializer, InitialDraft, Initializer, plain_layer


def initial_head(origin: DraftInitializer, layers: int) -> Eagle3HeadConfig:
    """Return a head of `layers` layers for a target, without optional norms."""
    config = origin.config
    return Eagle3HeadConfig(
        layer=replace(plain_layer(config), num_layers=layers, vocab_size=len(origin.drafted)),
        aux_layers=tuple(number + 1 for number in origin.eagle_layers()),
        target_hidden_size=config.hidden_size,
        target_vocab_size=config.vocab_size,
        norm_before_fc=False,
        fc_norm=False,
        norm_before_residual=False,
        norm_output=False,
        fc_bias=False,
        own_embedding=False,
        own_head=True,
        maps_ids=True,
    )


def initial_config(origin: DraftInitializer, architecture: str, layers: int) -> dict[str, Any]:
    """Return config.json of the head."""
    return origin.layer_config(plain_layer(origin.config), architecture, layers) | {
        "draft_vocab_size": len(origin.drafted),
        "eagle_config": {AUX_LAYERS: list(origin.eagle_layers()), "use_aux_hidden_state": True},
    }


def initial_tensors(origin: DraftInitializer) -> dict[str, Tensor]:
    """Return the tensors copied from the target, and the vocabulary maps."""
    ids = origin.drafted
    return {
        "norm.weight": origin.last_norm,
        "lm_head.weight": origin.lm_head[ids],
        "d2t": ids - torch.arange(len(ids)),
        "t2d": torch.zeros(origin.config.vocab_size, dtype=torch.bool).index_fill(0, ids, True),
    }


def make(origin: DraftInitializer) -> InitialDraft:
    """Return a head of one layer."""
    tensors = initial_tensors(origin)
    tensors = origin.fill(head_rules(initial_head(origin, 1), Eagle3Names(layer="midlayer")), tensors) | {
        "t2d": tensors["t2d"]
    }
    return InitialDraft(initial_config(origin, "LlamaForCausalLMEagle3", 1) | {"norm_output": False}, tensors)


MAKER = Initializer(make, ("draft_vocab",))
