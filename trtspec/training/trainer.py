# SPDX-License-Identifier: Apache-2.0
"""Training loop: AdamW until the budget is spent or validation no longer improves; resumable after an interruption.

The state is saved in one file. The result is the weights with the best acceptance on the validation prompts, possibly
the initial ones.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from trtspec.bench.profile.acceptance import AcceptanceStats
from trtspec.core.errors import TrtspecError
from trtspec.engine.resume_state import load_resume_state, save_resume_state
from trtspec.training.batches import STEP_ROWS, TrainingBatch, training_batches
from trtspec.training.evaluation import MOST_LOSS
from trtspec.training.objective import LOSSES, acceptance, batch_loss
from trtspec.training.settings import TrainSettings
from trtspec.training.teacher import TargetOutputs
from trtspec.training.texts import TrainingText
from trtspec.training.trainable import TrainableDraft

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

    `scores` cover the new traffic, and are 0 if the prompts to keep lost more than the gate allows; `kept` cover the
    prompts to keep.
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
        """Return whether the last validations brought no improvement."""
        return len(self.scores) - 1 - self.best >= PATIENCE


class Trainer:
    """The training of one draft; its state is saved in the directory `notes`."""

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
        """Train, and return the changed source tensors with the best weights."""
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
        """Return the seconds spent in all processes."""
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
        batch = TrainingBatch.of(texts, self._device)
        loss = batch_loss(self.student, self.student.tensors.view(), batch, self._lessons, LOSSES[self.settings.loss])
        self._check_learns(float(loss.detach()))
        self._optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(self._parameters, CLIP)
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate(self.settings, self.student.width, self._progress)
        self._optimizer.step()
        self.course.step += 1
        self.course.losses.append(float(loss.detach()))

    def _check_learns(self, loss: float) -> None:
        if not math.isfinite(loss):
            highest = learning_rate(self.settings, self.student.width, WARM_UP)
            hint = f"the learning rate is too high: try --learning-rate {highest / 10:.0e}"
            raise TrtspecError(f"the loss is not finite after {self.course.step} steps", hint=hint)

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
    """Return the mean accepted length of the texts with this `kept`, 1 without any."""
    own = [counts for counts, text in zip(found.texts, texts, strict=True) if text.kept is kept]
    steps = sum(counts.steps for counts in own)
    return 1.0 + sum(counts.accepted for counts in own) / steps if steps else 1.0


def learning_rate(settings: TrainSettings, width: int, progress: float) -> float:
    """Return the learning rate at a share of the budget: linear warm-up, then half a cosine.

    By default the maximum is inversely proportional to the draft's width, as in maximal update parametrization for
    matrices under Adam (arXiv:2203.03466), with a factor for LoRA's thin matrices and for random weights.
    """
    times = LORA_TIMES if settings.lora else SCRATCH_TIMES if settings.from_scratch else 1.0
    highest = settings.learning_rate or RATE_TIMES_WIDTH / width * times
    if progress < WARM_UP:
        return highest * max(0.01, progress / WARM_UP)
    falling = (1 + math.cos(math.pi * min(1.0, (progress - WARM_UP) / (1 - WARM_UP)))) / 2
    return highest * (LAST_SHARE + (1 - LAST_SHARE) * falling)
