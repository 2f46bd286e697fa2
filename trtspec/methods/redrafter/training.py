# SPDX-License-Identifier: Apache-2.0
"""Training of a recurrent drafter (arXiv:2403.09919) over the steps of a draft."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from trtspec.checkpoints.source import load_source
from trtspec.engine.model.decoder import FINAL
from trtspec.methods.redrafter import find_head
from trtspec.training.batches import TrainingBatch
from trtspec.training.layers import View
from trtspec.training.shared_weights import SharedWeights
from trtspec.training.tensors import SourceTensors
from trtspec.training.trainable import DraftSource, DraftTrainer, TrainableDraft

NAME = "drafter"


class TrainableRecurrentDrafter(TrainableDraft):
    """A head with any of the naming schemes that `methods/redrafter` reads."""

    aux_layers = (FINAL,)

    def __init__(self, source: DraftSource) -> None:
        origin, settings, target = load_source(source.root), source.settings, source.target
        self.head = find_head(origin)
        self.width, self.passes = self.head.hidden_size, source.draft_len
        rules = list(self.head.rules())
        self.tensors = SourceTensors(origin, rules, lambda rule: True, settings.lora, settings.seed, target.device)
        self._borrowed = SharedWeights.of(target)

    def hidden(self, view: View, batch: TrainingBatch, features: Tensor | None) -> list[Tensor]:
        """Return for each step the target's hidden state concatenated with the state after the drafted tokens."""
        if features is None:
            raise ValueError("recurrent drafters need features of the target")
        context = features.flatten(0, 1)[batch.flat(1)]
        state, outputs = torch.zeros_like(context), []
        for step in range(self.passes):
            state = self._advance(view, state, self._borrowed.embed(batch.tokens_after(step)))
            outputs.append(torch.cat([context, state], -1))
        return outputs

    def logits(self, view: View, hidden: Tensor, step: int) -> Tensor:
        """Return the logits of the output layers."""
        if self.head.projects:
            hidden = _linear(view, "input_proj", hidden)
        for layer in range(self.head.num_layers):
            hidden = hidden + F.silu(_linear(view, f"layers.{layer}.linear", hidden))
        return _linear(view, "lm_head", hidden)

    def _advance(self, view: View, state: Tensor, embedded: Tensor) -> Tensor:
        if not self.head.is_rnn:
            return state + embedded
        return F.silu(_linear(view, "rnn_w", embedded) + _linear(view, "rnn_u", state))


def _linear(view: View, module: str, rows: Tensor) -> Tensor:
    return F.linear(rows, view[f"{NAME}.{module}.weight"], view.get(f"{NAME}.{module}.bias"))


TRAINABLE = DraftTrainer(TrainableRecurrentDrafter)
