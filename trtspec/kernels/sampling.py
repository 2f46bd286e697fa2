# SPDX-License-Identifier: Apache-2.0
"""From logits to probabilities and from probabilities to tokens, batched in torch on any device."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

_BELOW_ONE = 1.0 - 2.0**-53


@dataclass(frozen=True)
class SamplingParams:
    """How each row of a batch turns logits into probabilities: `temperature`, `top_k` and `top_p` are [batch]."""

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    truncates: bool  # whether any row uses top_k or top_p, which cost a sort
    mixed: bool = True  # whether greedy rows may be among them, which cost an argmax and a one-hot
    truncated: Tensor | None = None  # the rows that have to be sorted; None for all

    def probs(self, logits: Tensor) -> Tensor:
        """Return float32 probabilities for logits [batch, ..., vocab]; a row with temperature 0 becomes one-hot."""
        shape = (-1,) + (1,) * (logits.dim() - 1)
        probs = torch.softmax(logits.float() / self._divisor.view(shape), -1)
        if self.truncates and self.truncated is None:
            probs = _truncate(probs, self.top_k.view(shape), self.top_p.view(shape))
        elif self.truncates:
            rows = self.truncated
            probs[rows] = _truncate(probs[rows], self.top_k[rows].view(shape), self.top_p[rows].view(shape))
        if not self.mixed:
            return probs
        one_hot = torch.zeros_like(probs).scatter_(-1, logits.argmax(-1, keepdim=True), 1.0)
        return torch.where(self.greedy.view(shape), one_hot, probs)

    @cached_property
    def greedy(self) -> Tensor:
        """Whether a row is greedy [batch]."""
        return self.temperature == 0.0

    @cached_property
    def _divisor(self) -> Tensor:
        return torch.where(self.greedy, 1.0, self.temperature) if self.mixed else self.temperature


def _truncate(probs: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    ranked, order = torch.sort(probs, dim=-1, descending=True, stable=True)
    rank = torch.arange(probs.shape[-1], device=probs.device)
    ranked = ranked.masked_fill((top_k > 0) & (rank >= top_k), 0.0)
    ranked = ranked / ranked.sum(-1, keepdim=True)
    before = ranked.cumsum(-1) - ranked
    ranked = ranked.masked_fill((before >= top_p) & (rank > 0), 0.0)
    return torch.zeros_like(probs).scatter_(-1, order, ranked / ranked.sum(-1, keepdim=True))


def pick(weights: Tensor, uniforms: Tensor) -> Tensor:
    """Return tokens [batch] at `uniforms` [batch] of the cumulative weights [batch, vocab]; never one of weight zero.

    Where all weights are zero, the last token.
    """
    cumulated = weights.cumsum(-1, dtype=torch.float64)
    # what is below the whole mass is found at a token that adds to it
    below = uniforms.double().clamp_max(_BELOW_ONE).unsqueeze(-1) * cumulated[:, -1:]
    return torch.searchsorted(cumulated, below, right=True).squeeze(-1).clamp_max(weights.shape[-1] - 1)
