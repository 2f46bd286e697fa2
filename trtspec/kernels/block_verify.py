# SPDX-License-Identifier: Apache-2.0
"""Block verification of drafted chains: the rule of `reference_block.verify_block`, batched in torch on any device.

A row's result depends only on that row, so a request gets the same result in any batch.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from trtspec.kernels.chain import verify_chain
from trtspec.kernels.sampling import SamplingParams, pick
from trtspec.kernels.verify_result import VerifyResult


def verify_block(
    logits: Tensor,
    tokens: Tensor,
    lens: Sequence[int],
    params: SamplingParams | None = None,
    draft_probs: Tensor | None = None,
    uniforms: Tensor | None = None,
) -> list[VerifyResult]:
    """Return the accepted part of each row's chain and its next token; same arguments as `verify_chain`."""
    if params is None or uniforms is None:
        return verify_chain(logits, tokens, lens)
    target_probs = params.probs(logits)
    if draft_probs is None:
        draft_probs = torch.zeros_like(target_probs[:, :-1]).scatter_(-1, tokens.unsqueeze(-1), 1.0)
    # mask positions after a row's last drafted token
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
    """Return the share of each prefix's draft mass that the target covers [rows, draft_len + 1]; 1 for the empty
    prefix.
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
