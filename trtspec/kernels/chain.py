# SPDX-License-Identifier: Apache-2.0
"""The acceptance rule of `reference.py`, batched in torch on any device: greedy by comparison, sampling by the rule.

A row's result depends on that row alone, so a request says the same whatever else is in its batch.
"""

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


def verify_greedy(target_logits: Tensor, draft_tokens: Tensor, draft_lens: Tensor) -> tuple[Tensor, Tensor]:
    """Accept drafted tokens as long as they are the target's own choice.

    Args:
        target_logits: [batch, draft_len + 1, vocab].
        draft_tokens: [batch, draft_len].
        draft_lens: [batch], how many of the drafted tokens count in each row.

    Returns:
        accepted [batch] and the next token [batch], both int64.
    """
    choice = target_logits.argmax(-1)
    agrees = choice[:, :-1] == draft_tokens
    accepted = _count(agrees, draft_lens)
    return accepted, choice.gather(1, accepted.unsqueeze(1)).squeeze(1)


def verify_sampled(
    target_probs: Tensor, draft_probs: Tensor, draft_tokens: Tensor, draft_lens: Tensor, uniforms: Tensor
) -> tuple[Tensor, Tensor]:
    """Apply the acceptance rule of `reference.verify_chain` to a batch.

    Args:
        target_probs: [batch, draft_len + 1, vocab].
        draft_probs: [batch, draft_len, vocab].
        draft_tokens: [batch, draft_len].
        draft_lens: [batch], how many of the drafted tokens count in each row.
        uniforms: [batch, draft_len + 1] in [0, 1); the last column draws the next token.

    Returns:
        accepted [batch] and the next token [batch], both int64.
    """
    chosen = draft_tokens.unsqueeze(-1)
    target = target_probs[:, :-1].gather(-1, chosen).squeeze(-1)
    draft = draft_probs.gather(-1, chosen).squeeze(-1)
    accepted = _count((uniforms[:, :-1] * draft < target) & (target > 0), draft_lens)
    rows = torch.arange(len(accepted), device=accepted.device)
    after = target_probs[rows, accepted]
    # beyond the last drafted token nothing was drafted, so nothing is taken off the target's row
    padded = torch.nn.functional.pad(draft_probs, (0, 0, 0, 1))[rows, accepted]
    rejected = (accepted < draft_lens).unsqueeze(-1)
    residual = torch.where(rejected, (after - padded).clamp_min(0.0), after)
    weights = torch.where(residual.sum(-1, keepdim=True) > 0, residual, after)
    return accepted, pick(weights, uniforms[:, -1])


def _count(agrees: Tensor, draft_lens: Tensor) -> Tensor:
    within = torch.arange(agrees.shape[1], device=agrees.device) < draft_lens.unsqueeze(1)
    return (agrees & within).long().cumprod(1).sum(1)
