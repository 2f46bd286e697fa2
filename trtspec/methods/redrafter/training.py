# SPDX-License-Identifier: Apache-2.0
"""Initial weights and training of a recurrent drafter (arXiv:2403.09919) over the steps of a draft.

The initial drafter is in apple/ml-recurrent-drafter's format and has the same logits as the target's LM head. Its
layers have the target's width, not twice that width as in the reference, because drafting a token reads the whole LM
head of the drafter.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from trtspec.engine.model.decoder import FINAL
from trtspec.methods.redrafter import PROJECTIONS, STACKS, RedrafterHeadConfig, find_head
from trtspec.training.batches import TrainingBatch
from trtspec.training.layers import SharedWeights, View, linear
from trtspec.training.trainable import (
    DraftInitializer,
    DraftSource,
    DraftTrainer,
    InitialDraft,
    TrainableDraft,
)

LAYERS = 1
NAME = "drafter"


def make(origin: DraftInitializer) -> InitialDraft:
    """Return a new drafter whose blocks are the identity and whose projection selects the target's hidden state."""
    config, layers = origin.config, origin.sizes.layers or LAYERS
    hidden, vocab = config.hidden_size, config.vocab_size
    head = RedrafterHeadConfig(hidden, vocab, hidden, layers, is_rnn=True)
    given = {f"{STACKS[0]}.{layer}.linear.weight": torch.zeros(hidden, hidden) for layer in range(layers)} | {
        f"{PROJECTIONS[0]}.weight": torch.eye(hidden, 2 * hidden),
        f"{STACKS[0]}.{layers}.weight": origin.lm_head,
        "rnn_w.weight": origin.random(hidden, hidden) / origin.embedding_size,
    }
    keys = {
        "model_type": "recurrent_drafting_drafter",
        "hidden_size": hidden,
        "exit_dim": hidden,
        "num_draft_layers": layers,
        "rnn": True,
        "vocab_size": vocab,
        "torch_dtype": config.dtype,
    }
    return InitialDraft(keys, origin.fill(head.rules(), given))


class TrainableRecurrentDrafter(TrainableDraft):
    """A recurrent drafter with any of the tensor names that `methods/redrafter` reads."""

    aux_layers = (FINAL,)

    def __init__(self, source: DraftSource) -> None:
        self.head = find_head(source.origin)
        self.width, self.passes = self.head.hidden_size, source.draft_len
        self.tensors = source.tensors(source.origin, self.head.rules())
        self._borrowed = SharedWeights(source.target)

    def hidden(self, view: View, batch: TrainingBatch, features: Tensor) -> list[Tensor]:
        """Return, per step, the target's hidden state concatenated with the recurrent state after the draft tokens."""
        context = features.flatten(0, 1)[batch.flat(1)]
        state, outputs = torch.zeros_like(context), []
        for step in range(self.passes):
            state = self._advance(view, state, self._borrowed.embed(batch.tokens_after(step)))
            outputs.append(torch.cat([context, state], -1))
        return outputs

    def logits(self, view: View, hidden: Tensor, step: int) -> Tensor:
        if self.head.projects:
            hidden = linear(view, f"{NAME}.input_proj", hidden)
        for layer in range(self.head.num_layers):
            hidden = hidden + F.silu(linear(view, f"{NAME}.layers.{layer}.linear", hidden))
        return linear(view, f"{NAME}.lm_head", hidden)

    def _advance(self, view: View, state: Tensor, embedded: Tensor) -> Tensor:
        if not self.head.is_rnn:
            return state + embedded
        return F.silu(linear(view, f"{NAME}.rnn_w", embedded) + linear(view, f"{NAME}.rnn_u", state))


TRAINABLE = DraftTrainer(TrainableRecurrentDrafter, make, ("layers",))
