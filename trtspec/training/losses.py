# SPDX-License-Identifier: Apache-2.0
"""How far a draft's distribution is from the target's; means over places, in nats but for the last.

The total variation is the probability that a drafted token is rejected (arXiv:2211.17192, section 3.3).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from trtspec.training.settings import Loss


def kl(draft_logits: Tensor, target_logits: Tensor) -> Tensor:
    """Return KL(target || draft) of logits [places, vocab]: mass wherever the target has some."""
    draft, target = F.log_softmax(draft_logits, -1), F.log_softmax(target_logits, -1)
    return F.kl_div(draft, target, log_target=True, reduction="batchmean")


def greedy(draft_logits: Tensor, target_logits: Tensor) -> Tensor:
    """Return `kl` plus how much less probable the target's choice is to the draft, log(target / draft).

    Where the target is not sure, a draft with the wrong choice is hardly any distance away, and all that greedy
    requests accept is the choice.
    """
    choice = target_logits.argmax(-1, keepdim=True)
    draft, target = (F.log_softmax(logits, -1).gather(-1, choice) for logits in (draft_logits, target_logits))
    return kl(draft_logits, target_logits) + (target - draft).mean()


def reverse_kl(draft_logits: Tensor, target_logits: Tensor) -> Tensor:
    """Return KL(draft || target): no mass where the target has none."""
    return kl(target_logits, draft_logits)


def total_variation(draft_logits: Tensor, target_logits: Tensor) -> Tensor:
    """Return half the absolute difference."""
    return (torch.softmax(draft_logits, -1) - torch.softmax(target_logits, -1)).abs().sum(-1).mean() / 2


def surprise(sureness: Tensor | None, draft_logits: Tensor, target_logits: Tensor) -> Tensor:
    """Return the cross entropy of how sure a draft is, as logits [places], and of what will be accepted; 0 for None.

    A token that is sampled from the draft is accepted with probability 1 - `total_variation`, which is no gradient's
    way here.
    """
    if sureness is None:
        return draft_logits.new_zeros(())
    shared = torch.minimum(torch.softmax(draft_logits, -1), torch.softmax(target_logits, -1)).sum(-1)
    return F.binary_cross_entropy_with_logits(sureness, shared.detach())


LOSSES: dict[Loss, Callable[[Tensor, Tensor], Tensor]] = {
    "kl": kl, "greedy": greedy, "reverse_kl": reverse_kl, "tv": total_variation
}  # fmt: skip
