# SPDX-License-Identifier: Apache-2.0
"""Distances between a draft's distribution and the target's: means over places, in nats except for the last.

The total variation is the probability that a drafted token is rejected (arXiv:2211.17192, section 3.3).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from trtspec.training.settings import Loss


def kl(draft_logits: Tensor, target_logits: Tensor) -> Tensor:
    """Return KL(target || draft) of logits [places, vocab]; the draft must cover all of the target's mass."""
    draft, target = F.log_softmax(draft_logits, -1), F.log_softmax(target_logits, -1)
    return F.kl_div(draft, target, log_target=True, reduction="batchmean")


def greedy(draft_logits: Tensor, target_logits: Tensor) -> Tensor:
    """Return `kl` plus the log-probability that the draft lacks on the target's choice, log(target / draft).

    If the target is uncertain, a draft with the wrong choice has a small distance, but greedy requests accept only the
    target's choice.
    """
    choice = target_logits.argmax(-1, keepdim=True)
    draft, target = (F.log_softmax(logits, -1).gather(-1, choice) for logits in (draft_logits, target_logits))
    return kl(draft_logits, target_logits) + (target - draft).mean()


def reverse_kl(draft_logits: Tensor, target_logits: Tensor) -> Tensor:
    """Return KL(draft || target); the draft must not exceed the support of the target."""
    return kl(target_logits, draft_logits)


def total_variation(draft_logits: Tensor, target_logits: Tensor) -> Tensor:
    """Return half the sum of absolute differences."""
    return (torch.softmax(draft_logits, -1) - torch.softmax(target_logits, -1)).abs().sum(-1).mean() / 2


def confidence_loss(sureness: Tensor | None, draft_logits: Tensor, target_logits: Tensor) -> Tensor:
    """Return the cross entropy of a draft's confidence, as logits [places], and the acceptance probability; 0 for None.

    A token sampled from the draft is accepted with probability 1 - `total_variation`, which is detached here.
    """
    if sureness is None:
        return draft_logits.new_zeros(())
    shared = torch.minimum(torch.softmax(draft_logits, -1), torch.softmax(target_logits, -1)).sum(-1)
    return F.binary_cross_entropy_with_logits(sureness, shared.detach())


LOSSES: dict[Loss, Callable[[Tensor, Tensor], Tensor]] = {
    "kl": kl, "greedy": greedy, "reverse_kl": reverse_kl, "tv": total_variation
}  # fmt: skip
