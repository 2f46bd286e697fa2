# SPDX-License-Identifier: Apache-2.0
"""Training loop: AdamW until the budget is spent or validation no longer improves; resumable after an interruption.

The state is saved in one file. The result is the weights with the best acceptance on the validation prompts, possibly
the initial ones.

The loss is a draft's distance from the target: a mean over places, in nats except for the total variation. The total
variation is the probability that a drafted token is rejected (arXiv:2211.17192, section 3.3).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from trtspec.bench.profile.acceptance import AcceptanceStats, count_steps
from trtspec.core.errors import TrtspecError
from trtspec.engine.device import load_resume_state, save_resume_state
from trtspec.engine.measurement import ReplayedDraft
from trtspec.training.batches import STEP_ROWS, TargetOutputs, TrainingBatch, in_order, training_batches
from trtspec.training.evaluation import MOST_LOSS
from trtspec.training.layers import View
from trtspec.training.texts import Loss, TrainingText, TrainSettings
from trtspec.training.trainable import STEP_WEIGHT, TrainableDraft

Distance = Callable[[Tensor, Tensor], Tensor]


def kl(draft_logits: Tensor, target_logits: Tensor) -> Tensor:
    """Return the mean KL(target || draft) over places, from logits [places, vocab]."""
    draft, target = F.log_softmax(draft_logits, -1), F.log_softmax(target_logits, -1)
    return F.kl_div(draft, target, log_target=True, reduction="batchmean")


def greedy(draft_logits: Tensor, target_logits: Tensor) -> Tensor:
    """Return `kl` plus the mean log(target / draft) of the target's most probable token.

    If the target is uncertain, a draft with the wrong choice has a small distance, but greedy requests accept only the
    target's choice.
    """
    choice = target_logits.argmax(-1, keepdim=True)
    draft, target = (F.log_softmax(logits, -1).gather(-1, choice) for logits in (draft_logits, target_logits))
    return kl(draft_logits, target_logits) + (target - draft).mean()


def reverse_kl(draft_logits: Tensor, target_logits: Tensor) -> Tensor:
    """Return the mean KL(draft || target) over places, from logits [places, vocab]."""
    return kl(target_logits, draft_logits)


def total_variation(draft_logits: Tensor, target_logits: Tensor) -> Tensor:
    """Return half the sum of absolute differences of the probabilities, averaged over places."""
    return (torch.softmax(draft_logits, -1) - torch.softmax(target_logits, -1)).abs().sum(-1).mean() / 2


def confidence_loss(confidence: Tensor | None, draft_logits: Tensor, target_logits: Tensor) -> Tensor:
    """Return the cross entropy between a draft's confidence, logits [places], and the acceptance probability.

    A token sampled from the draft is accepted with probability 1 - `total_variation`; no gradient flows through this
    probability. The result is 0 if `confidence` is None.
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
    """Return the training loss of a batch: `distance` averaged over the places of each pass, weighted over passes.

    Places whose most probable token cannot be drafted are excluded, because the target's distribution over the draft
    vocabulary then differs from its real one.
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
    """Return a mask of the places whose target choice can be drafted, and the logits of the draft's vocabulary."""
    if student.vocab is None:
        return torch.ones(len(logits), dtype=torch.bool, device=logits.device), logits
    return torch.isin(logits.argmax(-1), student.vocab), logits[:, student.vocab]


def _hidden(
    student: TrainableDraft, view: View, batch: TrainingBatch, features: Tensor, able: Tensor | None = None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield, for each pass, the indices [n] of the places that it drafts for, and its hidden states [n, hidden]."""
    for number, hidden in enumerate(student.hidden(view, batch, features)):
        reached = batch.depths >= number
        at = (reached if able is None else reached & able).nonzero().flatten()
        yield at, hidden[at - number]


@torch.no_grad()
def acceptance(
    student: TrainableDraft, lessons: TargetOutputs, texts: Sequence[TrainingText], draft_len: int
) -> AcceptanceStats:
    """Return the acceptance of chains of `draft_len` tokens on greedy texts, with the engine's acceptance rule."""
    view, counts = student.tensors.view(), []
    for some in in_order(texts, lessons.teacher.rows):
        batch = TrainingBatch(some, lessons.teacher.model.device)
        features = lessons.of(batch)[1] if student.aux_layers else torch.empty(0)  # no pass of the target
        counts += [count_steps(places, draft_len) for places in _proposals(student, view, batch, features, draft_len)]
    return AcceptanceStats(tuple(counts), tuple(text.label for text in texts))


def _proposals(
    student: TrainableDraft, view: View, batch: TrainingBatch, features: Tensor, draft_len: int
) -> list[list[ReplayedDraft]]:
    """Return, for each row and place, how many drafted tokens of the chain that starts at the place match the text.

    As long as a chain is right, its input is the text itself, so one pass over the text evaluates all chains.
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
    """Return the number of consecutive right tokens in the chain that starts at `place`, at most `depth`."""
    for step in range(depth):
        if place + step >= len(hits[0]) or not hits[min(step, len(hits) - 1)][place + step]:
            return step
    return depth


VALIDATE_EVERY, PATIENCE = 50, 10
KEEP_EVERY_S = 180.0  # interval of saves if fifty steps take longer; the state is four times the draft in 32 bits
WARM_UP, LAST_SHARE = 0.05, 0.05  # share of the budget; share of the maximum learning rate
RATE_TIMES_WIDTH, LORA_TIMES, SCRATCH_TIMES = 0.2, 5.0, 4.0
CLIP = 1.0
STATE = "training.pt"

Say = Callable[[str], None]


@dataclass
class TrainingState:
    """State of a training: steps, seconds, and mean accepted lengths on the validation prompts.

    `scores` cover the new traffic, and are 0 if the regression prompts lost more than the gate allows; `kept` cover the
    regression prompts.
    """

    step: int = 0
    seconds: float = 0.0
    scores: list[float] = field(default_factory=list)
    kept: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)

    @property
    def best(self) -> int:
        """Return the index of the first best validation."""
        return self.scores.index(max(self.scores))

    @property
    def is_stale(self) -> bool:
        """Return whether the last PATIENCE validations brought no improvement."""
        return len(self.scores) - 1 - self.best >= PATIENCE


class Trainer:
    """Training of one draft; its state is saved in the directory `notes`, from which the constructor resumes."""

    def __init__(
        self,
        student: TrainableDraft,
        lessons: TargetOutputs,
        texts: Sequence[TrainingText],
        validation: Sequence[TrainingText],
        draft_len: int,
        settings: TrainSettings,
        notes: Path,
    ) -> None:
        self.student, self.settings = student, settings
        self._lessons, self._device = lessons, lessons.teacher.model.device
        self._texts, self._validation, self._draft_len = texts, validation, draft_len
        self._parameters = list(student.tensors.parameters.values())
        self._optimizer = torch.optim.AdamW(self._parameters, betas=(0.9, 0.95), weight_decay=0.0)
        self._state, self.course = notes / STATE, TrainingState()
        self._best = student.tensors.state()
        self._since, self._validated = time.perf_counter(), 0.0
        self._resume()

    def run(self, say: Say = lambda text: None) -> dict[str, torch.Tensor]:
        """Train; return the changed source tensors with the best weights. Raises TrtspecError for a non-finite loss."""
        if not self.course.scores:
            self._validate(say)
        rows = min(STEP_ROWS, self._lessons.teacher.rows)
        batches = training_batches(self._texts, rows, self.settings.seed, self.course.step)
        while max(self._progress, self._time_share) < 1.0 and not self.course.is_stale:
            self._train(next(batches))
            if self.course.step % VALIDATE_EVERY == 0:
                self._validate(say)
            elif time.perf_counter() - self._since > KEEP_EVERY_S:
                self._save()
        if self.course.step % VALIDATE_EVERY:
            self._validate(say)
        self.student.tensors.load_state(self._best)
        return self.student.tensors.changed()

    @property
    def seconds(self) -> float:
        """Return the seconds spent on the training in all processes."""
        return self.course.seconds + time.perf_counter() - self._since

    @property
    def _progress(self) -> float:
        """Return the spent share of the budget: of steps if limited, else of time.

        With a number of steps the result does not depend on interruptions.
        """
        steps = self.settings.steps
        return self.course.step / steps if steps else self._time_share

    @property
    def _time_share(self) -> float:
        """Return the spent share of the time, including the pending validation."""
        return (self.seconds + self._validated) / self.settings.seconds

    def _train(self, texts: Sequence[TrainingText]) -> None:
        batch = TrainingBatch(texts, self._device)
        loss = batch_loss(self.student, self.student.tensors.view(), batch, self._lessons, LOSSES[self.settings.loss])
        if not math.isfinite(float(loss.detach())):
            highest = learning_rate(self.settings, self.student.width, WARM_UP)
            hint = f"the learning rate is too high: try --learning-rate {highest / 10:.0e}"
            raise TrtspecError(f"the loss is not finite after {self.course.step} steps", hint=hint)
        self._optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(self._parameters, CLIP)
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate(self.settings, self.student.width, self._progress)
        self._optimizer.step()
        self.course.step += 1
        self.course.losses.append(float(loss.detach()))

    def _validate(self, say: Say) -> None:
        """Validate, keep the weights if they are the best, and save the state."""
        began = time.perf_counter()
        course = self.course
        found = acceptance(self.student, self._lessons, self._validation, self._draft_len)
        new, kept = (mean_length(found, self._validation, kept=kept) for kept in (False, True))
        course.kept.append(kept)
        course.scores.append(new if kept >= (1 - MOST_LOSS) * course.kept[0] else 0.0)
        if course.best == len(course.scores) - 1:
            self._best = self.student.tensors.state()
        self._save()
        self._validated = time.perf_counter() - began
        say(self._status())

    def _status(self) -> str:
        course, settings = self.course, self.settings
        left = max(0.0, settings.seconds - self.seconds)
        if settings.steps and course.step:
            left = min(left, self.seconds / course.step * (settings.steps - course.step))
        length = f"{course.scores[-1]:.2f} tokens per step on validation prompts, best {max(course.scores):.2f}"
        if not course.scores[-1]:
            length = f"the prompts to keep are at {course.kept[-1]:.2f} tokens per step, from {course.kept[0]:.2f}"
        return f"step {course.step}, {length}, at most {left:.0f} s left"

    def _save(self) -> None:
        now = time.perf_counter()
        self.course.seconds, self._since = self.course.seconds + now - self._since, now
        state = {
            "course": vars(self.course),
            "parameters": self.student.tensors.state(),
            "best": self._best,
            "optimizer": self._optimizer.state_dict(),
        }
        save_resume_state(self._state, state)

    def _resume(self) -> None:
        state = load_resume_state(self._state, self._device)
        if state is None:
            return
        self.course = TrainingState(**state["course"])
        self.student.tensors.load_state(state["parameters"])
        self._best = state["best"]
        self._optimizer.load_state_dict(state["optimizer"])


def mean_length(found: AcceptanceStats, texts: Sequence[TrainingText], *, kept: bool) -> float:
    """Return the mean accepted length of the texts whose `kept` has this value, or 1 without such texts."""
    own = [counts for counts, text in zip(found.texts, texts, strict=True) if text.kept is kept]
    steps = sum(counts.steps for counts in own)
    return 1.0 + sum(counts.accepted for counts in own) / steps if steps else 1.0


def learning_rate(settings: TrainSettings, width: int, progress: float) -> float:
    """Return the learning rate at a share of the budget: linear warm-up, then half a cosine.

    By default the maximum is inversely proportional to the draft's width, as in maximal update parametrization for
    matrices under Adam (arXiv:2203.03466), with a factor for LoRA's matrices and for random weights.
    """
    times = LORA_TIMES if settings.lora else SCRATCH_TIMES if settings.from_scratch else 1.0
    highest = settings.learning_rate or RATE_TIMES_WIDTH / width * times
    if progress < WARM_UP:
        return highest * max(0.01, progress / WARM_UP)
    falling = (1 + math.cos(math.pi * min(1.0, (progress - WARM_UP) / (1 - WARM_UP)))) / 2
    return highest * (LAST_SHARE + (1 - LAST_SHARE) * falling)
