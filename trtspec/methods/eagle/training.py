# SPDX-License-Identifier: Apache-2.0
"""The net of EAGLE and EAGLE-2, trained over the steps that it will draft, as EAGLE-3's heads are.

The papers (arXiv:2401.15077, section 4.2) train its first step alone, by the distance of its hidden states from the
target's beside that of the distributions. Here each step has the loss of the distributions, which is what is accepted.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from trtspec.checkpoints.source import load_source
from trtspec.engine.model.decoder import FINAL
from trtspec.methods.eagle import NETS, head_rules, read_head_config
from trtspec.training.batches import Batch
from trtspec.training.layers import Layer, View
from trtspec.training.shared_weights import Borrowed
from trtspec.training.tensors import SourceTensors
from trtspec.training.trainable import DraftSource, Student, Trainable
from trtspec.training.ttt_attention import MOST_PASSES, Chains

NET = f"{NETS}.0.drafter"
EMBEDDING = f"{NET}.vocab_embedding.weight"


class EagleStudent(Student):
    """A net of one layer; the embedding stays as it is, and the LM head is the target's."""

    aux_layers = (FINAL,)

    def __init__(self, source: DraftSource) -> None:
        target, settings, origin = source.target, source.settings, load_source(source.root)
        self.config = read_head_config(origin, target.config)
        self.width, self.passes = self.config.hidden_size, min(source.draft_len, MOST_PASSES)
        rules = [rule for rule in head_rules(self.config, NET) if rule.sources[0].name in origin.tensors]
        self.tensors = SourceTensors(
            origin, rules, lambda rule: rule.name != EMBEDDING, settings.lora, settings.seed, target.device
        )
        self._borrowed = Borrowed.of(target)

    def hidden(self, view: View, batch: Batch, features: Tensor | None) -> list[Tensor]:
        """Return what each pass makes of the pairs (hidden state of t, token at t + 1)."""
        if features is None:
            raise ValueError("a head reads features of the target")
        embedding = view.get(EMBEDDING, self._borrowed.embedding)
        chains, hidden, made = Chains(batch), features, []
        layer = Layer(view, f"{NET}.layers.0", self.config)
        for _ in range(self.passes):
            pairs = torch.cat([F.embedding(chains.tokens, embedding), hidden], -1)
            joined = F.linear(pairs, view[f"{NET}.fc.weight"], view.get(f"{NET}.fc.bias"))
            hidden = layer.finish(chains.own(joined), chains.attend(layer, joined))
            made.append(hidden[batch.is_place])
        return made

    def logits(self, view: View, hidden: Tensor, step: int) -> Tensor:
        """Return the target's LM head's."""
        return self._borrowed.logits(hidden)


TRAINABLE = Trainable(EagleStudent)
