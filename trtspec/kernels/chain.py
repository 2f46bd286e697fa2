# SPDX-License-Identifier: Apache-2.0
"""Verification of drafted chains, token by token or as a block, batched in torch on any device.

The rules equal tests/kernels/reference.py. A row's result depends only on that row, so a request's result does not
depend on its batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from trtspec.kernels.sampling import SamplingParams, pick


@dataclass(frozen=True)
class VerifyResult:
    """The accepted nodes of one request, from the root's child down (1, 2, ... for a chain), and the next token."""

    path: list[int]
    token: int


def verify_chain(
    logits: Tensor,
    tokens: Tensor,
    lens: Sequence[int],
    params: SamplingParams | None = None,
    draft_probs: Tensor | None = None,
    uniforms: Tensor | None = None,
) -> list[VerifyResult]:
    """Verify chains token by token; return each row's accepted tokens and its next token.

    Results are copied to the host once.

    Args:
        logits: [rows, draft_len + 1, vocab], the target's logits at each draft token and after the last.
        tokens: [rows, draft_len], the draft tokens.
        lens: the number of valid draft tokens in each row.
        params: the sampling parameters. Without `params` and `uniforms`, all rows are greedy.
        draft_probs: [rows, draft_len, vocab], the distribution of each draft token, or None for deterministic tokens,
            such as the most probable or looked-up ones.
        uniforms: [rows, draft_len + 1] in [0, 1): one for each draft token, then one for the next token.
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
    """Return the numbers of accepted tokens [rows] and the next tokens [rows]."""
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


def verify_block(
    logits: Tensor,
    tokens: Tensor,
    lens: Sequence[int],
    params: SamplingParams | None = None,
    draft_probs: Tensor | None = None,
    uniforms: Tensor | None = None,
) -> list[VerifyResult]:
    """Verify chains as a whole (block verification), with the arguments and results of `verify_chain`."""
    if params is None or uniforms is None:
        return verify_chain(logits, tokens, lens)
    target_probs = params.probs(logits)
    if draft_probs is None:
        draft_probs = torch.zeros_like(target_probs[:, :-1]).scatter_(-1, tokens.unsqueeze(-1), 1.0)
    # mask positions after a row's last draft token
    limits = torch.tensor(lens, device=logits.device).unsqueeze(1)
    places = torch.arange(tokens.shape[1] + 1, device=logits.device)
    drafted = F.pad(draft_probs, (0, 0, 0, 1)) * (places < limits).unsqueeze(-1)
    kept = _covered_shares(target_probs[:, :-1], draft_probs, tokens)
    surplus = (kept.unsqueeze(-1) * target_probs - drafted).clamp_min(0.0)
    chance = _chance(surplus.sum(-1), kept)[:, 1:]
    taken = (uniforms[:, :-1] < chance) & (places[1:] <= limits)
    accepted = (taken * places[1:]).amax(1) if tokens.shape[1] else limits.squeeze(1)
    rows = torch.arange(len(accepted), device=accepted.device)
    left, after = surplus[rows, accepted], target_probs[rows, accepted]
    following = pick(torch.where(left.sum(-1, keepdim=True) > 0, left, after), uniforms[:, -1])
    results = torch.stack([accepted, following], 1).tolist()
    return [VerifyResult(list(range(1, count + 1)), token) for count, token in results]


def _covered_shares(target_probs: Tensor, draft_probs: Tensor, tokens: Tensor) -> Tensor:
    """Return, per prefix [rows, draft_len + 1], the share of its draft mass that the target covers.

    The share of the empty prefix is 1.
    """
    ids = tokens.unsqueeze(-1)
    target, draft = (probs.gather(-1, ids).squeeze(-1) for probs in (target_probs, draft_probs))
    kept = [target_probs.new_ones(len(tokens))]
    for place in range(tokens.shape[1]):
        mass = kept[-1] * target[:, place]
        kept.append(torch.where(mass > 0, (mass / draft[:, place]).clamp_max(1.0), 0.0))
    return torch.stack(kept, 1)


def _chance(surplus: Tensor, kept: Tensor) -> Tensor:
    total = surplus + (1.0 - kept)
    return torch.where(total > 0, surplus / total, 1.0)
