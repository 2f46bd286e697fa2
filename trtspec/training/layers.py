# SPDX-License-Identifier: Apache-2.0
"""Differentiable parts of drafts: decoder layers, attention of chains and blocks, weights shared with the target.

Tensors have TensorRT-LLM's names, so one layer supports every dense family and draft heads. The layers compute the same
results as the torch engine's fused and rearranged layers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from trtspec.checkpoints.model_config import ModelConfig
from trtspec.engine.model.decoder import Decoder
from trtspec.engine.model.layer_pass import attend_heads, rotate, rotation
from trtspec.engine.model.layers import ACTIVATIONS, AdjustedHead
from trtspec.engine.model.positions import sliding_window_config
from trtspec.training.batches import TrainingBatch

View: TypeAlias = Mapping[str, Tensor]  # tensors by their names in a converted checkpoint
Heads: TypeAlias = tuple[Tensor, Tensor, Tensor]  # queries, keys and values [rows, heads, positions, head_size]
MOST_PASSES = 7  # as in the training of EAGLE-3's authors: SafeAILab/EAGLE, traineagle3


def rms_norm(view: View, module: str, rows: Tensor, epsilon: float) -> Tensor:
    """Apply the RMS norm of a module to rows [..., n]."""
    weight = view[f"{module}.weight"]
    return F.rms_norm(rows, weight.shape, weight, epsilon)


def linear(view: View, module: str, rows: Tensor) -> Tensor:
    """Multiply rows by a module's matrix, and add its bias if there is one."""
    return F.linear(rows, view[f"{module}.weight"], view.get(f"{module}.bias"))


@dataclass(frozen=True)
class TrainableLayer:
    """Decoder layer `number` of a model; its tensors are those in `view` with names that start with `prefix`."""

    view: View
    prefix: str
    config: ModelConfig
    number: int = 0

    def __call__(self, hidden: Tensor) -> Tensor:
        """Return the layer's output for hidden states [rows, positions, hidden]; padding is on the right."""
        mixed = self._attend(self.norm(hidden, self.config.sublayer_norms[0]))
        return self.finish(hidden, mixed)

    def finish(self, hidden: Tensor, mixed: Tensor) -> Tensor:
        """Return the layer's output, given its input and its attention output, both [rows, positions, hidden]."""
        _, attention_out, mlp_in, mlp_out = self.config.sublayer_norms
        hidden = hidden + self._written(self.linear(mixed, "attention.dense"), attention_out)
        return hidden + self._written(self._mlp(self.norm(hidden, mlp_in)), mlp_out)

    def heads(self, read: Tensor, at: Tensor | None = None) -> Heads:
        """Return queries, keys and values of hidden states, with queries and keys rotated by their positions.

        The positions are `at` [rows, positions], by default 0, 1, ...
        """
        config = self.config
        counts = (config.num_heads, config.num_kv_heads, config.num_kv_heads)
        sizes = [count * config.head_size for count in counts]
        parts = torch.split_with_sizes(self.linear(read, "attention.qkv"), sizes, -1)
        if config.qk_norm_over_heads:
            parts = (*self._norm_qk(parts[:2]), parts[2])
        query, key, value = (part.view(*part.shape[:-1], -1, config.head_size) for part in parts)
        if config.qk_norm and not config.qk_norm_over_heads:
            query, key = self._norm_qk((query, key))
        reach = read.shape[1] if at is None else int(at.max()) + 1
        cosines, sines = rotation(self._rotated, reach, read.device, read.dtype)
        if at is not None:
            cosines, sines = cosines[at].unsqueeze(1), sines[at].unsqueeze(1)
        query, key = (rotate(part.transpose(1, 2), cosines, sines) for part in (query, key))
        return query, key, value.transpose(1, 2)

    def norm(self, rows: Tensor, module: str) -> Tensor:
        """Apply the RMS norm of a module to rows [..., n]; return them unchanged if `module` is ""."""
        return rms_norm(self.view, f"{self.prefix}.{module}", rows, self.config.norm_epsilon) if module else rows

    def linear(self, rows: Tensor, module: str) -> Tensor:
        return linear(self.view, f"{self.prefix}.{module}", rows)

    def _norm_qk(self, parts: Sequence[Tensor]) -> list[Tensor]:
        return [self.norm(part, f"attention.{n}_layernorm") for n, part in zip("qk", parts, strict=True)]

    def _written(self, rows: Tensor, module: str) -> Tensor:
        """Return a sublayer's output, normalized and scaled, as it is added to the residual."""
        rows, factor = self.norm(rows, module), self.config.residual_multiplier
        return rows * factor if factor != 1.0 else rows

    @property
    def _has_window(self) -> bool:
        return self.config.has_window(self.number)

    @property
    def _rotated(self) -> ModelConfig:
        return sliding_window_config(self.config) if self._has_window else self.config

    def _attend(self, normed: Tensor) -> Tensor:
        reach = self.config.sliding_window if self._has_window else 0
        reach = reach if normed.shape[1] > reach else 0
        return attend_heads(*self.heads(normed), self.config, reach).transpose(1, 2).flatten(2)

    def _mlp(self, rows: Tensor) -> Tensor:
        act = self.config.hidden_act
        if act == "swiglu":  # the linear half is stored above the activated one
            linear, activated = self.linear(rows, "mlp.fc").chunk(2, -1)
        else:
            activated, linear = self.linear(rows, "mlp.fc"), self.linear(rows, "mlp.gate")
        return self.linear(ACTIVATIONS[act](activated) * linear, "mlp.proj")


def adjust_logits(logits: Tensor, factor: float, cap: float) -> Tensor:
    """Return logits times `factor`, capped as in `AdjustedHead`."""
    logits = logits * factor if factor != 1.0 else logits
    return torch.tanh(logits / cap) * cap if cap else logits


class SharedWeights:
    """A target's embedding and LM head rows [vocab, hidden] in float32, and the adjustment of its logits."""

    def __init__(self, target: Decoder) -> None:
        head = target.lm_head
        weight = (head.head if isinstance(head, AdjustedHead) else head).matrix.weight
        self.embedding, self.head = target.embedding.float(), weight.float()
        self.factor, self.cap = target.config.logit_multiplier, target.config.logit_cap

    def embed(self, tokens: Tensor) -> Tensor:
        return F.embedding(tokens, self.embedding)

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the target's logits [n, vocab] for hidden states [n, hidden]."""
        return adjust_logits(F.linear(hidden, self.head), self.factor, self.cap)


class RolloutAttention:
    """Attention of chains to the text and to their own earlier tokens; stores the keys and values of each pass.

    A chain starts at each place of the batch. The first pass reads the text, each later pass one token per chain.
    """

    def __init__(self, batch: TrainingBatch) -> None:
        self._batch, self._starts = batch, batch.grid - 1
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []

    @property
    def tokens(self) -> Tensor:
        """Return the input tokens of the next pass: the text shifted by one at first, then each chain's next token."""
        tokens = self._batch.tokens
        if not self._keys:
            return torch.roll(tokens, -1, 1)  # no chain sees the last entry, which wraps around
        return tokens.gather(1, (self._starts + 1 + len(self._keys)).clamp(max=tokens.shape[1] - 1))

    def at_starts(self, rows: Tensor) -> Tensor:
        """Return the entries [rows, count, n] of the next pass's input at the chains' starts."""
        return rows if self._keys else rows.gather(1, self._starts.unsqueeze(2).expand(-1, -1, rows.shape[2]))

    def attend(self, layer: TrainableLayer, read: Tensor) -> Tensor:
        """Return a layer's attention output [rows, count, heads * head_size] for the chains in the next pass.

        The input `read` is [rows, width, n] in the first pass, then [rows, count, n].
        """
        config, step = layer.config, len(self._keys)
        query, key, value = layer.heads(read, self._starts + step if step else None)
        if not step:
            at = self._starts[:, None, :, None]
            query = query.gather(2, at.expand(-1, query.shape[1], -1, query.shape[3]))
        group = config.num_heads // config.num_kv_heads
        self._keys.append(key.repeat_interleave(group, 1))
        self._values.append(value.repeat_interleave(group, 1))
        return self._mix(query, config.score_scale).transpose(1, 2).flatten(2)

    def _mix(self, query: Tensor, scale: float) -> Tensor:
        width = self._batch.tokens.shape[1]
        future = torch.arange(width, device=query.device) > self._starts[:, None, :, None]
        scores = [(query @ self._keys[0].mT).masked_fill(future, -torch.inf)]
        scores += [(query * own).sum(-1, keepdim=True) for own in self._keys[1:]]
        weights = torch.softmax(torch.cat(scores, -1) * scale, -1)
        mixed = weights[..., :width] @ self._values[0]
        for number, own in enumerate(self._values[1:]):
            mixed = mixed + weights[..., width + number, None] * own
        return mixed


class BlockAttention:
    """Attention of blocks of `width` positions; a block starts at each place of the batch, at most `count` per row.

    A block attends to the text before its place and to itself, with `is_causal` only up to the current position.
    """

    def __init__(self, batch: TrainingBatch, width: int, *, is_causal: bool) -> None:
        self._batch, self._width = batch, width
        numbers = torch.arange(width, device=batch.tokens.device)
        self.at = (batch.grid.unsqueeze(2) + numbers).flatten(1)  # [rows, count * width]
        self.anchors = batch.grid.repeat_interleave(width, 1)  # the start of each position's block
        self._hidden = numbers > numbers.unsqueeze(1) if is_causal else None

    def attend(self, layer: TrainableLayer, known: Heads, read: Tensor) -> Tensor:
        """Return a layer's attention output [rows, count * width, heads * head_size] for the blocks.

        `known` are queries, keys and values of the text. The blocks' input `read` is [rows, count * width, n].
        """
        config = layer.config
        group = config.num_heads // config.num_kv_heads
        query, *own = layer.heads(read, self.at)
        keys, values, own_keys, own_values = (each.repeat_interleave(group, 1) for each in (*known[1:], *own))
        behind = torch.arange(keys.shape[2], device=read.device) >= self.anchors[:, None, :, None]
        scores = [(query @ keys.mT).masked_fill(behind, -torch.inf)]
        inner = self._apart(query) @ self._apart(own_keys).mT
        scores.append((inner if self._hidden is None else inner.masked_fill(self._hidden, -torch.inf)).flatten(2, 3))
        weights = torch.softmax(torch.cat(scores, -1) * config.score_scale, -1)
        text, block = torch.split_with_sizes(weights, [keys.shape[2], self._width], -1)
        mixed = text @ values + (self._apart(block) @ self._apart(own_values)).flatten(2, 3)
        joined: Tensor = mixed.transpose(1, 2).flatten(2)
        return joined

    def step(self, hidden: Tensor, number: int) -> Tensor:
        """Return the states [places, hidden] at one position of each block, from [rows, count * width, hidden]."""
        rows, entries, _ = hidden.shape
        return hidden.view(rows, entries // self._width, self._width, -1)[self._batch.is_valid, number]

    def _apart(self, heads: Tensor) -> Tensor:
        rows, count, entries, _ = heads.shape
        return heads.reshape(rows, count, entries // self._width, self._width, -1)
