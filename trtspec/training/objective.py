# SPDX-License-Identifier: Apache-2.0
"""Training loss and validation metric of a draft: its distance from the target, and the accepted length of chains.

Distances between the distributions are means over places, in nats except for the total variation. That is the
probability that a drafted token is rejected (arXiv:2211.17192, section 3.3).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from trtspec.bench.profile.acceptance import AcceptanceStats, count_steps
from trtspec.engine.measurement import ReplayedDraft
from trtspec.training.batches import TrainingBatch, in_order
from trtspec.training.layers import View
from trtspec.training.settings import Loss
from trtspec.training.teacher import TargetOutputs
from trtspec.training.texts import TrainingText
from trtspec.training.trainable import STEP_WEIGHT, TrainableDraft

Distance = Callable[[Tensor, Tensor], Tensor]


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


def confidence_loss(confidence: Tensor | None, draft_logits: Tensor, target_logits: Tensor) -> Tensor:
    """Return the cross entropy of a draft's confidence, as logits [places], and the acceptance probability; 0 for None.

    A token sampled from the draft is accepted with probability 1 - `total_variation`, which is detached here.
    """
    if confidence is None:
        return draft_logits.new_zeros(())
    shared = torch.minimum(torch.softmax(draft_logits, -1), torch.softmax(target_logits, -1)).sum(-1)
    return F.binary_cross_entropy_with_logits(confidence, shared.detach())


LOSSES: dict[Loss, Distance] = {
    "kl": kl, "greedy": greedy, "reverse_kl": reverse_kl, "tv": total_variation
}  # fmt: skip


def batch_loss(
    student: TrainableDraft, view: View, batch: TrainingBatch, lessons: TargetOutputs, distance: Distance
) -> Tensor:
    """Return the distance from the target's distributions: the mean of each pass, weighted over the passes.

    Places whose most probable token cannot be drafted are excluded, because the target's distribution over the draft
    vocabulary differs from its real one there.
    """
    wanted, features = lessons.of(batch)
    able, wanted = _within(student, wanted)
    losses, weights = [], []
    for number, (at, hidden) in enumerate(_hidden(student, view, batch, features, able)):
        if len(at):
            logits = student.logits(view, hidden, number)
            common = min(logits.shape[-1], wanted.shape[-1])  # ignore padding of the vocabulary
            pair = logits[:, :common], wanted[at, :common]
            losses.append(distance(*pair) + confidence_loss(student.confidence(view, hidden, number), *pair))
            weights.append(STEP_WEIGHT**number)
    if not losses:
        return sum((p.sum() * 0.0 for p in student.tensors.parameters.values()), torch.zeros(()))
    weighted = [weight * loss for weight, loss in zip(weights, losses, strict=True)]
    return torch.stack(weighted).sum() / sum(weights)


def _within(student: TrainableDraft, logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return a mask of places whose target choice can be drafted, and logits of the draft's vocabulary."""
    if student.vocab is None:
        return torch.ones(len(logits), dtype=torch.bool, device=logits.device), logits
    return torch.isin(logits.argmax(-1), student.vocab), logits[:, student.vocab]


def _hidden(
    student: TrainableDraft, view: View, batch: TrainingBatch, features: Tensor, able: Tensor | None = None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield for each pass the indices of the places [n] that it drafts for, and its hidden states [n, hidden]."""
    for number, hidden in enumerate(student.hidden(view, batch, features)):
        reached = batch.depths >= number
        at = (reached if able is None else reached & able).nonzero().flatten()
        yield at, hidden[at - number]


@torch.no_grad()
def acceptance(
    student: TrainableDraft, lessons: TargetOutputs, texts: Sequence[TrainingText], draft_len: int
) -> AcceptanceStats:
    """Return the acceptance of chains of `draft_len` tokens on greedy texts, with the engine's rule."""
    view, counts = student.tensors.view(), []
    for some in in_order(texts, lessons.teacher.rows):
        batch = TrainingBatch.of(some, lessons.teacher.model.device)
        features = lessons.of(batch)[1] if student.aux_layers else torch.empty(0)  # no pass of the target
        counts += [count_steps(places, draft_len) for places in _proposals(student, view, batch, features, draft_len)]
    return AcceptanceStats(tuple(counts), tuple(text.label for text in texts))


def _proposals(
    student: TrainableDraft, view: View, batch: TrainingBatch, features: Tensor, draft_len: int
) -> list[list[ReplayedDraft]]:
    """Return for each row how many drafted tokens match the text in the chain that starts at each place.

    A chain that was right so far has read the text itself, so one pass over the text evaluates all chains.
    """
    hits = []
    for number, (at, hidden) in enumerate(_hidden(student, view, batch, features)):
        drafted = student.logits(view, hidden, number).argmax(-1)
        drafted = drafted if student.vocab is None else student.vocab[drafted]
        found = torch.zeros(len(batch.depths), dtype=torch.bool, device=drafted.device)
        found[at] = drafted == batch.following[at]
        hits.append(found.tolist())
    depth = draft_len if student.reads_on else min(draft_len, student.passes)
    starts, rows = 0, []
    for count in batch.counts:
        own = [each[starts : starts + count] for each in hits]
        rows.append([ReplayedDraft(depth, depth, _run(own, place, depth)) for place in range(count)])
        starts += count
    return rows


def _run(hits: Sequence[Sequence[bool]], place: int, depth: int) -> int:
    """Return the number of consecutive right tokens in the chain that starts at `place`."""
    for step in range(depth):
        if place + step >= len(hits[0]) or not hits[min(step, len(hits) - 1)][place + step]:
            return step
    return depth
