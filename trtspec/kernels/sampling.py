# SPDX-License-Identifier: Apache-2.0
"""Conversion of logits to probabilities, and sampling of tokens from them, batched in torch on any device."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

FEW = 64  # size of the top-k search before a full sort
_ALL = 2**31 - 1
_BELOW_ONE = 1.0 - 2.0**-53


@dataclass(frozen=True)
class SamplingParams:
    """Sampling parameters [batch]; temperature 0 is greedy, `top_k` 0 and `top_p` 1 keep all tokens."""

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    truncates: bool  # true if any row uses top_k or top_p, which require a search
    mixed: bool = True  # true if rows may be greedy, which requires an argmax and a one-hot
    truncated: Tensor | None = None  # the rows that use top_k or top_p, or None for all

    def probs(self, logits: Tensor) -> Tensor:
        """Return float32 probabilities for logits [batch, ..., vocab]; rows of greedy requests are one-hot."""
        shape = (-1,) + (1,) * (logits.dim() - 1)
        probs = torch.softmax(logits.float() / self._divisor.view(shape), -1)
        if self.truncates and self.truncated is None:
            probs = _truncate(probs, *self._cuts(shape))
        elif self.truncates:
            probs[self.truncated] = _truncate(probs[self.truncated], *self._cuts(shape))
        if not self.mixed:
            return probs
        one_hot = torch.zeros_like(probs).scatter_(-1, logits.argmax(-1, keepdim=True), 1.0)
        return torch.where(self.greedy.view(shape), one_hot, probs)

    @cached_property
    def greedy(self) -> Tensor:
        """Return a mask [batch] of the greedy rows."""
        return self.temperature == 0.0

    def _cuts(self, shape: tuple[int, ...]) -> tuple[Tensor | None, Tensor]:
        """Return top-k limits, or None, and top-p shares of the truncated rows, in the given shape."""
        top_k, top_p = self._truncations
        return None if top_k is None else top_k.view(shape), top_p.view(shape)

    @cached_property
    def _truncations(self) -> tuple[Tensor | None, Tensor]:
        rows = slice(None) if self.truncated is None else self.truncated
        top_k, top_p = self.top_k[rows], self.top_p[rows]
        share = torch.where(top_p < 1.0, top_p, torch.inf)
        if top_k.device.type == "cpu" and not top_k.any():
            return None, share
        return torch.where(top_k > 0, top_k, _ALL), share

    @cached_property
    def _divisor(self) -> Tensor:
        return torch.where(self.greedy, 1.0, self.temperature) if self.mixed else self.temperature


def _truncate(probs: Tensor, most: Tensor | None, share: Tensor) -> Tensor:
    """Keep the most probable tokens of each row of probs [..., vocab]: at most `most`, and `share` of the mass.

    On a CPU, a top-k search precedes the full sort, which can take thirty times as long. The results are bit-identical.
    """
    if probs.shape[-1] <= FEW or probs.device.type != "cpu":
        return _truncate_sorted(probs, most, share)
    ranked = probs.topk(FEW).values
    last, total = _last(ranked, most, share)
    least = ranked.gather(-1, last)
    kept = probs.masked_fill(probs < least, 0.0).div_(total)
    # these rows need a full sort: more than FEW tokens are kept, or others tie with the last kept one
    is_unsure = ranked.gather(-1, last.add(1).clamp_max_(FEW - 1)) == least
    if most is not None:
        is_unsure |= (most > FEW) & (most != _ALL)
    if is_unsure.any():
        rows = is_unsure.squeeze(-1)
        some = None if most is None else most.expand(is_unsure.shape)[rows]
        kept[rows] = _truncate_sorted(probs[rows], some, share.expand(is_unsure.shape)[rows])
    return kept


def _truncate_sorted(probs: Tensor, most: Tensor | None, share: Tensor) -> Tensor:
    ranked, order = torch.sort(probs, dim=-1, descending=True, stable=True)
    last, total = _last(ranked, most, share)
    ranked.masked_fill_(torch.arange(probs.shape[-1], device=probs.device) > last, 0.0).div_(total)
    return torch.zeros_like(probs).scatter_(-1, order, ranked)


def _last(ranked: Tensor, most: Tensor | None, share: Tensor) -> tuple[Tensor, Tensor]:
    """Return the index of the last kept token in sorted probabilities [..., width], and the mass up to it."""
    width, upto = ranked.shape[-1], ranked.cumsum(-1)
    if most is None:
        is_inside = upto < share
    else:
        first = most.expand(*upto.shape[:-1], 1).clamp_max(width) - 1
        mass = torch.where(most > width, 1.0, upto.gather(-1, first))
        is_inside = (upto < share * mass) & (torch.arange(1, width + 1, device=ranked.device) < most)
    last = is_inside.sum(-1, keepdim=True).clamp_max_(width - 1)
    return last, upto.gather(-1, last)


def pick(weights: Tensor, uniforms: Tensor) -> Tensor:
    """Sample a token per row from weights [batch, vocab] with `uniforms` [batch] in [0, 1); return tokens [batch].

    A token of weight zero is never returned, except for the last token if all weights are zero.
    """
    cumulated = weights.cumsum(-1, dtype=torch.float64)
    # a value below the total mass always falls on a token with a weight above zero
    below = uniforms.double().clamp_max(_BELOW_ONE).unsqueeze(-1) * cumulated[:, -1:]
    return torch.searchsorted(cumulated, below, right=True).squeeze(-1).clamp_max(weights.shape[-1] - 1)
