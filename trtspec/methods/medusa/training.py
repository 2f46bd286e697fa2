# SPDX-License-Identifier: Apache-2.0
"""Initial weights and training of Medusa heads (arXiv:2401.10774); head k predicts the token k + 2 positions ahead.

There is one initial head per draft token, with the same logits as the target's LM head. The target is frozen.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from trtspec.engine.model.decoder import FINAL
from trtspec.methods.medusa import Heads, find_heads
from trtspec.training.batches import TrainingBatch
from trtspec.training.layers import View
from trtspec.training.trainable import (
    DraftInitializer,
    DraftSource,
    DraftTrainer,
    InitialDraft,
    TrainableDraft,
)

LAYERS = 1


def make(origin: DraftInitializer) -> InitialDraft:
    """Return heads of one residual block each, initialized to the identity."""
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


class TrainableMedusa(TrainableDraft):
    """All Medusa heads of a source."""

    aux_layers = (FINAL,)

    def __init__(self, source: DraftSource) -> None:
        self.heads = find_heads(source.origin)
        self.width, self.passes = self.heads.hidden_size, self.heads.num_heads
        self.tensors = source.tensors(source.origin, self.heads.rules())

    def hidden(self, view: View, batch: TrainingBatch, features: Tensor) -> list[Tensor]:
        """Return the output of each head's blocks for the hidden states that predict the answers' tokens."""
        selected = features.flatten(0, 1)[batch.flat(1)]
        return [self._blocks(view, selected, head) for head in range(self.passes)]

    def logits(self, view: View, hidden: Tensor, step: int) -> Tensor:
        return F.linear(hidden, view[self.heads.lm_head(step).name])

    def _blocks(self, view: View, hidden: Tensor, head: int) -> Tensor:
        for layer in range(self.heads.num_layers):
            weight, bias = (view[rule(head, layer).name] for rule in (self.heads.weight, self.heads.bias))
            hidden = hidden + F.silu(F.linear(hidden, weight, bias))
        return hidden


TRAINABLE = DraftTrainer(TrainableMedusa, make)
