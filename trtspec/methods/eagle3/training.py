# SPDX-License-Identifier: Apache-2.0
"""Initial weights and training of an EAGLE-3 head over the steps of a draft.

The initial head is in SpecForge's format, with copies of the target's LM head and final norm. It uses the target's
embedding. Training follows the training-time test of arXiv:2503.01840, section 3.2: the first pass reads the target's
hidden states, and each later pass reads the output of the previous one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from trtspec.checkpoints.model_config import ModelConfig
from trtspec.checkpoints.rules import Rule
from trtspec.checkpoints.source import Source
from trtspec.methods.eagle3 import (
    AUX_LAYERS,
    LAYER,
    NAME,
    Eagle3HeadConfig,
    Eagle3Names,
    default_aux_layers,
    find_names,
    head_rules,
    read_head_config,
)
from trtspec.training.batches import TrainingBatch
from trtspec.training.layers import MOST_PASSES, RolloutAttention, SharedWeights, TrainableLayer, View, linear, rms_norm
from trtspec.training.tensors import chosen_ids, moved_rows
from trtspec.training.texts import TrainingText
from trtspec.training.trainable import (
    DEEP,
    LEAST_READ,
    DraftInitializer,
    DraftSource,
    DraftTrainer,
    InitialDraft,
    TrainableDraft,
    plain_layer,
)

EMBEDDING = f"{NAME}.vocab_embedding.weight"


def initial_head(origin: DraftInitializer, layers: int) -> Eagle3HeadConfig:
    """Return the configuration of a new head with `layers` layers, without optional norms."""
    config = origin.config
    return Eagle3HeadConfig(
        layer=replace(plain_layer(config), num_layers=layers, vocab_size=len(origin.drafted)),
        aux_layers=_aux_layers(origin),
        target_hidden_size=config.hidden_size,
        target_vocab_size=config.vocab_size,
        own_head=True,
        maps_ids=True,
    )


def _aux_layers(origin: DraftInitializer) -> tuple[int, ...]:
    """Return the auxiliary layers of a new head: EAGLE-3's default layers, or others if the target has few layers."""
    if (layers := origin.config.num_layers) >= DEEP:
        return default_aux_layers(layers)
    return tuple(number + 1 for number in origin.outputs_read(LEAST_READ))


def initial_config(origin: DraftInitializer, architecture: str, layers: int) -> dict[str, Any]:
    return origin.layer_config(plain_layer(origin.config), architecture, layers) | {
        "draft_vocab_size": len(origin.drafted),
        "eagle_config": {AUX_LAYERS: [number - 1 for number in _aux_layers(origin)], "use_aux_hidden_state": True},
    }


def initial_tensors(origin: DraftInitializer) -> dict[str, Tensor]:
    """Return the initial tensors that are not random: copies from the target, and the vocabulary maps."""
    ids = origin.drafted
    return {
        "norm.weight": origin.last_norm,
        "lm_head.weight": origin.lm_head[ids],
        "d2t": ids - torch.arange(len(ids)),
        "t2d": torch.zeros(origin.config.vocab_size, dtype=torch.bool).index_fill(0, ids, True),
    }


def make(origin: DraftInitializer) -> InitialDraft:
    rules = head_rules(initial_head(origin, 1), Eagle3Names(layer="midlayer"))
    config = initial_config(origin, "LlamaForCausalLMEagle3", 1) | {"norm_output": False}
    return InitialDraft(config, origin.fill(rules, initial_tensors(origin)))


class TrainableEagle3(TrainableDraft):
    """An EAGLE-3 head of one layer, in any format that `methods/eagle3` reads."""

    def __init__(self, source: DraftSource) -> None:
        target, origin = source.target, source.origin
        names = find_names(origin)
        self.head = head = read_head_config(origin, names, target.config)
        self.width, self.aux_layers = head.layer.hidden_size, head.aux_layers
        self.passes = min(source.draft_len, MOST_PASSES)
        self.tensors = source.tensors(origin, self._rules(origin, names, target.config), frozen=[EMBEDDING])
        self._borrowed = SharedWeights(target)
        if head.maps_ids:
            self._drafted = torch.arange(head.layer.vocab_size, device=target.device)
            self.vocab = ids = self._drafted + self.tensors.tensor(f"{names.prefix}d2t")
            if head.own_head and self.width == head.target_hidden_size:
                self._follow(source.texts, ids, names)

    def hidden(self, view: View, batch: TrainingBatch, features: Tensor) -> list[Tensor]:
        """Return the output of each pass at the valid positions.

        The first pass reads pairs of the fused hidden state at t and the token at t + 1; later passes replace the
        hidden state with the previous pass's output.
        """
        chains, hidden, outputs = RolloutAttention(batch), self._fuse(view, features), []
        layer = TrainableLayer(view, LAYER, self.head.layer)
        for _ in range(self.passes):
            read, residual = self._read(layer, self._embed(view, chains.tokens), hidden)
            hidden = layer.finish(chains.at_starts(residual), chains.attend(layer, read))
            hidden = self._norm(view, hidden, "norm") if self.head.norm_output else hidden
            outputs.append(hidden[batch.is_valid])
        return outputs

    def logits(self, view: View, hidden: Tensor, step: int) -> Tensor:
        normed = hidden if self.head.norm_output else self._norm(view, hidden, "norm")
        if self.head.own_head:
            return F.linear(normed, view[f"{NAME}.lm_head.weight"])
        return self._borrowed.logits(normed)

    def _rules(self, origin: Source, names: Eagle3Names, target: ModelConfig) -> Sequence[Rule]:
        return head_rules(self.head, names)

    @torch.no_grad()
    def _follow(self, texts: Sequence[TrainingText], ids: Tensor, names: Eagle3Names) -> None:
        """Replace the draft vocabulary with the most frequent tokens of the texts' answers."""
        tensors, chosen = self.tensors, chosen_ids(ids, texts)
        if torch.equal(chosen, ids):
            return
        self.vocab = chosen
        lm_head, d2t, t2d = (f"{names.prefix}{name}" for name in (names.lm_head, "d2t", "t2d"))
        tensors.replace(lm_head, moved_rows(tensors.tensor(lm_head), ids, chosen, self._borrowed.head))
        tensors.replace(d2t, chosen - self._drafted)
        if t2d in tensors.source.tensors:
            drafted = torch.zeros(self.head.target_vocab_size, dtype=torch.bool, device=chosen.device)
            tensors.replace(t2d, drafted.index_fill(0, chosen, True))

    def _embed(self, view: View, tokens: Tensor) -> Tensor:
        return F.embedding(tokens, view.get(EMBEDDING, self._borrowed.embedding))

    def _fuse(self, view: View, features: Tensor) -> Tensor:
        if norms := self.head.fuse_norms:
            chunks = features.chunk(len(norms), -1)
            features = torch.cat([self._norm(view, *each) for each in zip(chunks, norms, strict=True)], -1)
        return linear(view, f"{NAME}.fc", features)

    def _read(self, layer: TrainableLayer, embedded: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Return the input [.., 2 * width] of the first layer's attention, and the residual."""
        normed = layer.norm(hidden, "hidden_norm")
        read = torch.cat([layer.norm(embedded, "input_layernorm"), normed], -1)
        return read, normed if self.head.norm_before_residual else hidden

    def _norm(self, view: View, rows: Tensor, module: str) -> Tensor:
        return rms_norm(view, f"{NAME}.{module}", rows, self.head.layer.norm_epsilon)


TRAINABLE = DraftTrainer(TrainableEagle3, make, ("draft_vocab",))
