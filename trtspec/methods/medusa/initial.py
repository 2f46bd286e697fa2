# SPDX-License-Identifier: Apache-2.0
"""Initial Medusa heads, one for each drafted token, which start with the output of the target's LM head."""

from __future__ import annotations

import torch

from trtspec.methods.medusa.heads import Heads
from trtspec.training.initialization import DraftInitializer, InitialDraft, Initializer

LAYERS = 1


def make(origin: DraftInitializer) -> InitialDraft:
    """Return heads of one block each, initialized to the identity."""
    config, count = origin.config, origin.draft_len
    heads = Heads(count, LAYERS, config.hidden_size, config.vocab_size)
    given = {heads.lm_head(head).sources[0].name: origin.lm_head for head in range(count)}
    for head in range(count):
        given[heads.weight(head, 0).sources[0].name] = torch.zeros(config.hidden_size, config.hidden_size)
    keys = {
        "architectures": ["MedusaModel"],
        "model_type": "medusa",
        "medusa_num_heads": count,
        "medusa_num_layers": LAYERS,
        "medusa_fc_bias": True,  # without this key vLLM ignores the biases
        "hidden_size": config.hidden_size,
        "vocab_size": config.vocab_size,
        "torch_dtype": config.dtype,
    }
    return InitialDraft(keys, origin.fill(heads.rules(), given), "medusa_lm_head.safetensors")


MAKER = Initializer(make)
