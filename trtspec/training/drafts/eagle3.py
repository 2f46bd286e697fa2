# SPDX-License-Identifier: Apache-2.0
"""An EAGLE-3 head, trained over the steps that it will draft: test-time training, arXiv:2503.01840, section 3.2.

The first pass reads the target's hidden states, each later one what the one before it has made. The chain that begins
at a place sees the first pass up to that place, and of each later pass its own entry alone, as when it drafts.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from trtspec.checkpoint.rules import Rule
from trtspec.checkpoint.source import load_source
from trtspec.errors import CheckpointError
from trtspec.methods.eagle3 import find_names
from trtspec.methods.eagle3_head import LAYER, NAME, head_rules, stored_head
from trtspec.training.layers import Layer, View
from trtspec.training.student import DraftSource, Student, Trainable
from trtspec.training.tensors import SourceTensors

MOST_PASSES = 7  # as the paper's authors train: SafeAILab/EAGLE, traineagle3
FROZEN = (f"{NAME}.vocab_embedding.weight",)


class Eagle3Student(Student):
    """A head of one layer in any of the layouts that `methods/eagle3` reads."""

    ahead = 2

    def __init__(self, source: DraftSource) -> None:
        target, settings = source.target, source.settings
        checkpoint = target.checkpoint
        head = stored_head(checkpoint.document, checkpoint.ranks[-1].keys(), target.config)
        if head is None:
            raise CheckpointError("holds no EAGLE-3 head", where=str(checkpoint.root))
        self.head, self.width = head, head.layer.hidden_size
        self.aux_layers, self.passes = head.aux_layers, min(source.draft_len, MOST_PASSES)
        origin = load_source(source.root)
        rules = head_rules(head, find_names(origin))
        self.tensors = SourceTensors(origin, rules, _is_trained, settings.lora, settings.seed, target.device)
        self._embedding, self._target_head = target.embedding, target.lm_head
        if head.maps_ids:
            drafted = torch.arange(head.layer.vocab_size, device=target.device)
            self.vocab = drafted + self.tensors.view()[f"{NAME}.d2t"]

    def hidden(self, view: View, tokens: Tensor, features: Tensor | None) -> list[Tensor]:
        """Return what each pass makes of the pairs (feature of t, token at t + 1)."""
        if features is None:
            raise ValueError("a head reads features of the target")
        embedding = view[FROZEN[0]] if self.head.own_embedding else self._embedding
        embedded = F.embedding(tokens, embedding)
        hidden, keys, values, made = self._fuse(view, features), list[Tensor](), list[Tensor](), []
        for step in range(self.passes):
            following = torch.roll(embedded, -1 - step, 1)  # what comes round stands at places without a draft
            hidden = self._pass(view, following, hidden, keys, values)
            made.append(hidden)
        return made

    def logits(self, view: View, hidden: Tensor) -> Tensor:
        """Return those of the draft vocabulary."""
        normed = hidden if self.head.norm_output else self._norm(view, hidden, "norm")
        if self.head.own_head:
            return F.linear(normed, view[f"{NAME}.lm_head.weight"])
        return self._target_head(normed)

    def _fuse(self, view: View, features: Tensor) -> Tensor:
        if norms := self.head.fuse_norms:
            chunks = features.chunk(len(norms), -1)
            features = torch.cat([self._norm(view, *each) for each in zip(chunks, norms, strict=True)], -1)
        return F.linear(features, view[f"{NAME}.fc.weight"], view.get(f"{NAME}.fc.bias"))

    def _pass(self, view: View, embedded: Tensor, hidden: Tensor, keys: list[Tensor], values: list[Tensor]) -> Tensor:
        layer = Layer(view, LAYER, self.head.layer)
        normed = layer.norm(hidden, "hidden_norm")
        read = torch.cat([layer.norm(embedded, "input_layernorm"), normed], -1)
        mixed = _attend(layer, read, keys, values)
        made = layer.finish(normed if self.head.norm_before_residual else hidden, mixed)
        return self._norm(view, made, "norm") if self.head.norm_output else made

    def _norm(self, view: View, rows: Tensor, module: str) -> Tensor:
        weight = view[f"{NAME}.{module}.weight"]
        return F.rms_norm(rows, weight.shape, weight, self.head.layer.norm_epsilon)


def _is_trained(rule: Rule) -> bool:
    return rule.target not in FROZEN


def _attend(layer: Layer, read: Tensor, keys: list[Tensor], values: list[Tensor]) -> Tensor:
    """Return what the heads say to `read` [rows, positions, width], whose keys and values are added to the lists."""
    config, width, step = layer.config, read.shape[1], len(keys)
    group = config.num_heads // config.num_kv_heads
    query, key, value = layer.heads(read, first=step)
    keys.append(key.repeat_interleave(group, 1))
    values.append(value.repeat_interleave(group, 1))
    future = torch.ones(width, width, dtype=torch.bool, device=read.device).triu(1)
    scores = [(query @ keys[0].mT).masked_fill(future, -torch.inf)]
    scores += [(query * own).sum(-1, keepdim=True) for own in keys[1:]]
    weights = torch.softmax(torch.cat(scores, -1) * config.score_scale, -1)
    mixed = weights[..., :width] @ values[0]
    for number, own in enumerate(values[1:]):
        mixed = mixed + weights[..., width + number, None] * own
    return mixed.transpose(1, 2).flatten(2)


TRAINABLE = Trainable(Eagle3Student)
