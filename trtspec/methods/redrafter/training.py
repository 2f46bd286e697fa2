# SPDX-License-Identifier: Apache-2.0
"""Initial weights and training of a recurrent drafter (arXiv:2403.09919) over the steps of a draft.

The initial drafter is in apple/ml-recurrent-drafter's format and starts with the output of the target's LM head. Its
width is the target's, not twice as in the reference, because each drafted token loads its LM head.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from trtspec.checkpoints.source import load_source
from trtspec.engine.model.decoder import FINAL
from trtspec.methods.redrafter import PROJECTIONS, STACKS, RedrafterHeadConfig, find_head
from trtspec.training.batches import TrainingBatch
from trtspec.training.layers import SharedWeights, View
from trtspec.training.tensors import SourceTensors
from trtspec.training.trainable import (
    DraftInitializer,
    DraftSource,
    DraftTrainer,
    InitialDraft,
    Initializer,
    TrainableDraft,
)

LAYERS = 1


def make(origin: DraftInitializer) -> InitialDraft:
    """Return a drafter whose blocks are the identity and whose projection selects the target's hidden state."""
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


MAKER = Initializer(make, ("layers",))


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
