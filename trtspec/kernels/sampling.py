# SPDX-License-Identifier: Apache-2.0
"""From logits to probabilities and from probabilities to tokens, batched in torch on any device."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Warp:
    """How each row of a batch turns logits into probabilities: `temperature`, `top_k` and `top_p` are [batch]."""

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    truncates: bool  # whether any row uses top_k or top_p, which cost a sort

    def probs(self, logits: Tensor) -> Tensor:
        """Return float32 probabilities for logits [batch, ..., vocab]; a row with temperature 0 becomes one-hot."""
        shape = (-1,) + (1,) * (logits.dim() - 1)
        temperature = self.temperature.view(shape)
        greedy = temperature == 0.0
        probs = torch.softmax(logits.float() / torch.where(greedy, 1.0, temperature), -1)
        if self.truncates:
            probs = _truncate(probs, self.top_k.view(shape), self.top_p.view(shape))
        one_hot = torch.zeros_like(probs).scatter_(-1, logits.argmax(-1, keepdim=True), 1.0)
        return torch.where(greedy, one_hot, probs)


def _truncate(probs: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    ranked, order = torch.sort(probs, dim=-1, descending=True, stable=True)
    rank = torch.arange(probs.shape[-1], device=probs.device)
    ranked = ranked.masked_fill((top_k > 0) & (rank >= top_k), 0.0)
    ranked = ranked / ranked.sum(-1, keepdim=True)
    before = ranked.cumsum(-1) - ranked
    ranked = ranked.masked_fill((before >= top_p) & (rank > 0), 0.0)
    return torch.zeros_like(probs).scatter_(-1, order, ranked / ranked.sum(-1, keepdim=True))


def pick(weights: Tensor, uniforms: Tensor) -> Tensor:
    """Return tokens [batch] at `uniforms` [batch] of the cumulated weights [batch, vocab]; never one of weight zero."""
    cumulated = weights.double().cumsum(-1)
    tokens = torch.searchsorted(cumulated, uniforms.double().unsqueeze(-1) * cumulated[:, -1:], right=True).squeeze(-1)
    last = weights.shape[-1] - 1 - (weights > 0).flip(-1).byte().argmax(-1)
    return torch.minimum(tokens, last)
