# SPDX-License-Identifier: Apache-2.0
"""The step that measures a draft's acceptance on the held-out prompts with the recipe's method."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import ClassVar

from trtspec.backends.steps.convert import ConvertCheckpoint
from trtspec.bench.profile.acceptance import StepCounts
from trtspec.bench.profile.candidate import SampleTexts
from trtspec.bench.profile.engine_profiler import replayed
from trtspec.core.errors import TrtspecError
from trtspec.engine.settings import EngineSettings
from trtspec.store.step import Inputs, Step, StepProgress
from trtspec.training.answer_prompts import AnswerPrompts
from trtspec.training.texts import HELD_OUT, TEXTS, TrainingText, read_texts

COUNTS = "counts.json"


@dataclass(frozen=True)
class MeasureDraft(Step):
    """Write `counts.json`: the steps of each held-out text.

    `settings` are the engine's, as JSON; `when` is only part of the name.
    """

    VERSION: ClassVar[int] = 1

    when: str = field(metadata={"key": False})
    target: ConvertCheckpoint
    draft: tuple[ConvertCheckpoint, ...]
    texts: AnswerPrompts
    settings: str

    @property
    def name(self) -> str:
        """Return `measure-before` or `measure-after`."""
        return f"measure-{self.when}"

    def run(self, out: Path, inputs: Inputs, progress: StepProgress) -> None:
        """Measure; TrtspecError if the target's responses are too short."""
        from trtspec.engine.speculator import Speculator

        texts = read_held_out(inputs[self.texts])
        if not texts:
            raise TrtspecError("the target answers no held-out prompt with two tokens", hint="use different prompts")
        draft = inputs[self.draft[0]] if self.draft else None
        speculator = Speculator.load(inputs[self.target], draft, EngineSettings.from_json(self.settings))
        held_out = SampleTexts(
            tuple(text.prompt for text in texts),
            tuple(text.answer for text in texts),
            tuple(text.label for text in texts),
        )
        depth = speculator.draft_shape.max_depth
        found = replayed(
            "held-out", speculator, held_out, [depth], lambda what, done, total: progress.say(f"{done}/{total}")
        )
        (out / COUNTS).write_text(json.dumps([asdict(counts) for counts in found[depth].texts]))


def evaluation_texts(texts: Sequence[TrainingText]) -> list[TrainingText]:
    """Return the evaluation texts: held-out ones whose response has a token that can be drafted."""
    return [text for text in texts if text.side == HELD_OUT and len(text.answer) > 1]


def read_held_out(answers: Path) -> list[TrainingText]:
    """Return the evaluation texts in the output of `AnswerPrompts`."""
    return evaluation_texts(read_texts(answers / TEXTS))


def read_counts(path: Path) -> list[StepCounts]:
    """Return the step's output, in the order of `evaluation_texts`."""
    return [
        StepCounts(each["steps"], each["drafted"], each["accepted"], tuple(each["reached"]), tuple(each["drafted_at"]))
        for each in json.loads((path / COUNTS).read_text())
    ]
