# SPDX-License-Identifier: Apache-2.0
"""Initial weights and training of the head of EAGLE and EAGLE-2, over the steps of a draft.

The initial head is in SafeAILab's format: one layer of the target's shape that uses the target's embedding and LM head.

The paper (arXiv:2401.15077, section 4.2) trains only the first step, with losses on hidden states and distributions.
Training here covers every step, like EAGLE-3's, and uses only the distributions, which determine acceptance.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from trtspec.engine.model.decoder import FINAL
from trtspec.methods.eagle import NETS, OPTIONAL, head_rules, read_head_config
from trtspec.training.batches import TrainingBatch
from trtspec.training.layers import MOST_PASSES, RolloutAttention, SharedWeights, TrainableLayer, View, linear
from trtspec.training.trainable import (
    DraftInitializer,
    DraftSource,
    DraftTrainer,
    InitialDraft,
    TrainableDraft,
    plain_layer,
)

NET = f"{NETS}.0.drafter"
EMBEDDING = f"{NET}.vocab_embedding.weight"


def make(origin: DraftInitializer) -> InitialDraft:
    """Return a new head; `fc` is without a bias, which some engines do not support."""
    layer = plain_layer(origin.config)
    rules = [rule for rule in head_rules(layer, NETS) if rule.sources[0].name not in OPTIONAL]
    fused = origin.random(layer.hidden_size, 2 * layer.hidden_size)
    fused[:, : layer.hidden_size] /= origin.embedding_size
    config = origin.layer_config(layer, "LlamaForCausalLM", 1) | {"bias": False}
    return InitialDraft(config, origin.fill(rules, {"fc.weight": fused}))


class TrainableEagle(TrainableDraft):
    """An EAGLE head; its embedding is frozen, and the LM head is the target's."""

    aux_layers = (FINAL,)

    def __init__(self, source: DraftSource) -> None:
        target, origin = source.target, source.origin
        self.config = read_head_config(origin, target.config)
        self.width, self.passes = self.config.hidden_size, min(source.draft_len, MOST_PASSES)
        rules = [rule for rule in head_rules(self.config, NET) if rule.sources[0].name in origin.tensors]
        self.tensors = source.tensors(origin, rules, frozen=[EMBEDDING])
        self._borrowed = SharedWeights(target)

    def hidden(self, view: View, batch: TrainingBatch, features: Tensor) -> list[Tensor]:
        """Return the output of each pass at the valid positions.

        The first pass reads pairs of the target's hidden state at t and the token at t + 1; later passes replace the
        hidden state with the previous pass's output.
        """
        embedding = view.get(EMBEDDING, self._borrowed.embedding)
        chains, hidden, outputs = RolloutAttention(batch), features, []
        layer = TrainableLayer(view, f"{NET}.layers.0", self.config)
        for _ in range(self.passes):
            pairs = torch.cat([F.embedding(chains.tokens, embedding), hidden], -1)
            joined = linear(view, f"{NET}.fc", pairs)
            hidden = layer.finish(chains.at_starts(joined), chains.attend(layer, joined))
            outputs.append(hidden[batch.is_valid])
        return outputs

    def logits(self, view: View, hidden: Tensor, step: int) -> Tensor:
        return self._borrowed.logits(hidden)


TRAINABLE = DraftTrainer(TrainableEagle, make)
