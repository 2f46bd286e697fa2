# SPDX-License-Identifier: Apache-2.0
"""A mixture of experts: a router weights the experts for each token, and the best ones are computed.

The operations and their order match transformers' Mixtral (src/transformers/models/mixtral/modeling_mixtral.py, its
eager experts), so that equal inputs give equal bits.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor


def mix_experts(hidden: Tensor, router: Tensor, top_k: int, expert: Callable[[int, Tensor], Tensor]) -> Tensor:
    """Return the weighted sum [tokens, hidden] of the outputs of each token's `top_k` experts.

    Args:
        hidden: [tokens, hidden].
        router: [experts, hidden]; the logits are computed in its dtype, which is float32 in TensorRT-LLM.
        top_k: the number of experts per token; their weights add up to one.
        expert: maps (number, rows [n, hidden]) to rows of the same shape; called in order for experts in use.
    """
    logits = F.linear(hidden.to(router.dtype), router)
    weights, picked = logits.float().softmax(-1).topk(top_k, -1)
    weights /= weights.sum(-1, keepdim=True)
    mixed = torch.zeros_like(hidden)
    for number in sorted(set(picked.flatten().tolist())):
        ranks, tokens = torch.where(picked.t() == number)
        rows = expert(number, hidden[tokens]) * weights[tokens, ranks, None]
        mixed.index_add_(0, tokens, rows.to(hidden.dtype))
    return mixed
