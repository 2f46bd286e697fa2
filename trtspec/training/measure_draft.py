# SPDX-License-Identifier: Apache-2.0
"""The step that counts how far a draft is accepted on the held-out prompts, by the recipe's own method."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import ClassVar

from trtspec.backends.steps.convert import ConvertCheckpoint
from trtspec.bench.profile.acceptance import Counts
from trtspec.bench.profile.candidate import Texts
from trtspec.bench.profile.engine_profiler import replayed
from trtspec.core.errors import TrtspecError
from trtspec.engine.settings import EngineSettings
from trtspec.store.step import Inputs, Progress, Step
from trtspec.training.answer_prompts import AnswerPrompts
from trtspec.training.texts import HELD_OUT, TEXTS, Text, read_texts

COUNTS = "counts.json"


@dataclass(frozen=True)
class MeasureDraft(Step):
    """Write `counts.json`: the steps of each held-out text.

    `settings` are the engine's, as JSON; `when` is for people.
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

    def run(self, out: Path, inputs: Inputs, progress: Progress) -> None:
        """Measure; raises TrtspecError where the target's answers judge nothing."""
        from trtspec.engine.speculator import Speculator

        texts = held_out_of(inputs[self.texts])
        if not texts:
            raise TrtspecError("the target answers no held-out prompt with two tokens", hint="give other prompts")
        draft = inputs[self.draft[0]] if self.draft else None
        speculator = Speculator.load(inputs[self.target], draft, EngineSettings.from_json(self.settings))
        said = Texts(
            tuple(text.prompt for text in texts),
            tuple(text.answer for text in texts),
            tuple(text.label for text in texts),
        )
        depth = speculator.draft_shape.max_depth
        found = replayed(
            "held-out", speculator, said, [depth], lambda what, done, total: progress.say(f"{done}/{total}")
        )
        (out / COUNTS).write_text(json.dumps([asdict(counts) for counts in found[depth].texts]))


def judges(texts: Sequence[Text]) -> list[Text]:
    """Return the texts that a draft is judged by: answers have a token that can be drafted."""
    return [text for text in texts if text.side == HELD_OUT and len(text.answer) > 1]


def held_out_of(answers: Path) -> list[Text]:
    """Return the texts that a draft is judged by, out of what `AnswerPrompts` wrote."""
    return judges(read_texts(answers / TEXTS))


def read_counts(path: Path) -> list[Counts]:
    """Return what the step wrote, in the order of `judges`."""
    return [
        Counts(each["steps"], each["drafted"], each["accepted"], tuple(each["reached"]), tuple(each["drafted_at"]))
        for each in json.loads((path / COUNTS).read_text())
    ]
