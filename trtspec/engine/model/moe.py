# SPDX-License-Identifier: Apache-2.0
"""A mixture of experts: a router weighs the experts for each token, and the best of them answer.

The operations and their order are those of transformers' Mixtral (src/transformers/models/mixtral/modeling_mixtral.py,
its eager experts), so that equal inputs give equal bits.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor


def mix_experts(hidden: Tensor, router: Tensor, top_k: int, expert: Callable[[int, Tensor], Tensor]) -> Tensor:
    """Return the weighted sum [tokens, hidden] of what each token's `top_k` experts make of it.

    Args:
        hidden: [tokens, hidden].
        router: [experts, hidden]; the logits are computed in its dtype, which TensorRT-LLM makes float32.
        top_k: how many experts a token gets; their weights add up to one.
        expert: maps (number, rows [n, hidden]) to rows of the same shape; called in order, where a token picked it.
    """
    logits = F.linear(hidden.to(router.dtype), router)
    weights, picked = logits.float().softmax(-1).topk(top_k, -1)
    weights /= weights.sum(-1, keepdim=True)
    mixed = torch.zeros_like(hidden)
    for number in sorted(set(picked.flatten().tolist())):
        places, tokens = torch.where(picked.t() == number)
        rows = expert(number, hidden[tokens]) * weights[tokens, places, None]
        mixed.index_add_(0, tokens, rows.to(hidden.dtype))
    return mixed
