# SPDX-License-Identifier: Apache-2.0
"""Verification of drafted chains: the rule of `reference.verify_chain`, batched in torch on any device.

A row's result depends only on that row, so a request gets the same result in any batch.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from trtspec.kernels.sampling import SamplingParams, pick
from trtspec.kernels.verify_result import VerifyResult


def verify_chain(
    logits: Tensor,
    tokens: Tensor,
    lens: Sequence[int],
    params: SamplingParams | None = None,
    draft_probs: Tensor | None = None,
    uniforms: Tensor | None = None,
) -> list[VerifyResult]:
    """Return the accepted part of each row's chain and its next token, with one transfer to the host.

    Args:
        logits: [rows, draft_len + 1, vocab], the target's logits at each drafted position and after the last.
        tokens: [rows, draft_len], the drafted tokens.
        lens: the number of valid drafted tokens in each row.
        params: the sampling parameters. Without `params` and `uniforms` every row is greedy.
        draft_probs: [rows, draft_len, vocab], the distribution of each drafted token, or None for deterministic
            tokens, such as the most probable or looked-up ones.
        uniforms: [rows, draft_len + 1] in [0, 1): one for each drafted token, then one for the next token.
    """
    limits = torch.tensor(lens, device=logits.device)
    if params is None or uniforms is None:
        choices = logits.argmax(-1)
        accepted = _count(choices[:, :-1] == tokens, limits)
        following = choices.gather(1, accepted.unsqueeze(1)).squeeze(1)
    else:
        accepted, following = _sample(params.probs(logits), tokens, limits, draft_probs, uniforms)
    results = torch.stack([accepted, following], 1).tolist()
    return [VerifyResult(list(range(1, count + 1)), token) for count, token in results]


def _sample(
    target_probs: Tensor, tokens: Tensor, limits: Tensor, draft_probs: Tensor | None, uniforms: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the number of accepted tokens [rows] and the next token [rows]."""
    ids = tokens.unsqueeze(-1)
    target = target_probs[:, :-1].gather(-1, ids).squeeze(-1)
    draft = torch.ones_like(target) if draft_probs is None else draft_probs.gather(-1, ids).squeeze(-1)
    accepted = _count(uniforms[:, :-1] * draft < target, limits)
    rows = torch.arange(len(accepted), device=accepted.device)
    after = target_probs[rows, accepted]
    # the position after the last token is padded; the padding is masked below
    if draft_probs is None:
        residual = after.scatter(1, F.pad(tokens, (0, 1))[rows, accepted].unsqueeze(1), 0.0)
    else:
        residual = (after - F.pad(draft_probs, (0, 0, 0, 1))[rows, accepted]).clamp_min(0.0)
    rejected = (accepted < limits).unsqueeze(-1) & (residual.sum(-1, keepdim=True) > 0)
    return accepted, pick(torch.where(rejected, residual, after), uniforms[:, -1])


def _count(agrees: Tensor, limits: Tensor) -> Tensor:
    within = torch.arange(agrees.shape[1], device=agrees.device) < limits.unsqueeze(1)
    return (agrees & within).long().cumprod(1).sum(1)
