# SPDX-License-Identifier: Apache-2.0
"""The step that trains a draft and writes it with new weights."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import ClassVar

from trtspec.backends.steps.convert import ConvertCheckpoint
from trtspec.bench.overlap import RECORD
from trtspec.core.errors import TrtspecError
from trtspec.store.files import Files
from trtspec.store.step import Inputs, Step, StepProgress, notes_dir
from trtspec.training.answer_prompts import AnswerPrompts
from trtspec.training.measure_draft import evaluation_texts
from trtspec.training.settings import TrainSettings
from trtspec.training.texts import TEXTS, TRAIN, VALIDATION, TrainingText, read_texts
from trtspec.training.verdict import MIN_EVAL_PROMPTS

VALIDATION_TEXTS = 48


@dataclass(frozen=True)
class TrainDraft(Step):
    """Train the draft in `source` for its target, and write a Hugging Face directory of the same layout."""

    VERSION: ClassVar[int] = 1
    RESUMABLE: ClassVar[bool] = True

    target: ConvertCheckpoint
    source: Files
    texts: AnswerPrompts
    method: str
    draft_len: int
    settings: TrainSettings

    @property
    def name(self) -> str:
        """Return the step's name."""
        return "train-draft"

    def run(self, out: Path, inputs: Inputs, progress: StepProgress) -> None:
        """Train; TrtspecError for a draft that cannot be trained, and for unsuitable responses."""
        from trtspec.training.export import write_checkpoint
        from trtspec.training.target_cache import TargetOutputs
        from trtspec.training.teacher import Teacher
        from trtspec.training.trainable import (
            DraftSource,
            find_trainable,
        )  # imports torch, which planning does not need
        from trtspec.training.trainer import Trainer

        answered = read_texts(inputs[self.texts] / TEXTS)
        check_held_out(answered)
        texts, validation = self._sides(answered)
        with self.source.unchanged():
            teacher = Teacher(inputs[self.target], [*texts, *validation])
            origin = DraftSource(self.source.root, teacher.model, self.draft_len, self.settings, texts)
            student = find_trainable(self.method).load(origin)
            lessons = TargetOutputs(teacher, student.aux_layers, [*texts, *validation])
            training = Trainer(student, lessons, texts, validation, self.draft_len, self.settings, notes_dir(out))
            trained = training.run(progress.say)
            write_checkpoint(student.tensors.source, trained, out)
        course = training.course
        record = {
            "steps": course.step,
            "scores": course.scores,
            "kept": course.kept,
            "best": course.best,
            "losses": course.losses,
        }
        (out / RECORD).write_text(json.dumps(record) + "\n")

    def _sides(self, texts: list[TrainingText]) -> tuple[list[TrainingText], list[TrainingText]]:
        taught = [text for text in texts if len(text.answer) > 1]  # a response's first token is never drafted
        train, validation = ([text for text in taught if text.side == side] for side in (TRAIN, VALIDATION))
        if not train or not validation:
            message = "the target answers too few prompts with at least two tokens to train on them"
            raise TrtspecError(message, hint="use different prompts")
        return train, Random(self.settings.seed).sample(validation, min(VALIDATION_TEXTS, len(validation)))


def check_held_out(texts: Sequence[TrainingText]) -> None:
    """Raise TrtspecError if there are too few held-out texts, before anything is trained."""
    count = sum(not text.kept for text in evaluation_texts(texts))
    if count < MIN_EVAL_PROMPTS:
        message = f"only {count} held-out prompts have an answer of two tokens; an evaluation needs {MIN_EVAL_PROMPTS}"
        raise TrtspecError(message, hint="add --prompts, of which a fifth is held out, or use --held-out")
