# SPDX-License-Identifier: Apache-2.0
"""The step that generates the target's responses to the prompts: greedy, and for training also sampled ones."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from trtspec.backends.common.convert import ConvertCheckpoint
from trtspec.core.errors import TrtspecError
from trtspec.engine.generation.request import EngineRequest, SamplingOptions
from trtspec.engine.settings import EngineSettings
from trtspec.store.files import Files
from trtspec.store.step import Inputs, Step, StepProgress, notes_dir
from trtspec.training.split_prompts import SplitPrompts
from trtspec.training.texts import TEXTS, TRAIN, TrainingText, read_texts, write_texts

if TYPE_CHECKING:
    from trtspec.engine.engine import Engine

DIAGNOSED = 16  # off-policy responses to compare with the target's
HINT = "remove the answers; the target generates them"


@dataclass(frozen=True)
class AnswerPrompts(Step):
    """Write `texts.jsonl` with a response of 1 to `max_tokens` tokens for each prompt.

    Responses in the prompt file are used if they are on-policy, and rejected otherwise. `sampled` is the number of
    additional responses per training prompt, at temperature 1. `settings` are the engine's, as JSON. `model` is the
    `bare_key` of `target`, because embedded draft heads do not change the responses.
    """

    VERSION: ClassVar[int] = 1
    RESUMABLE: ClassVar[bool] = True

    target: ConvertCheckpoint = field(metadata={"key": False})
    model: str
    tokenizer: Files
    prompts: SplitPrompts
    settings: str
    max_tokens: int
    sampled: int

    def run(self, out: Path, inputs: Inputs, progress: StepProgress) -> None:
        """Generate responses; TrtspecError for off-policy responses in the file, and if the target generates none."""
        texts = read_texts(inputs[self.prompts] / TEXTS)
        given = [replace(text, answer=text.answer[: self.max_tokens]) for text in texts if text.given]
        with self.tokenizer.unchanged():
            self._check(given, inputs[self.target])
            wanted = list(self._response_requests(texts))
            answered = self._answer(wanted, inputs[self.target], notes_dir(out) / TEXTS, progress)
        found = [text for text in (*given, *answered) if text.answer]
        _check_responses({token for text in found for token in text.answer})
        write_texts(out / TEXTS, found)

    def _response_requests(self, texts: Sequence[TrainingText]) -> Iterator[tuple[TrainingText, SamplingOptions]]:
        for number, text in enumerate(texts):
            if not text.given:
                yield text, SamplingOptions()
            if text.side == TRAIN:
                for more in range(self.sampled):
                    yield replace(text, given=False), SamplingOptions(1.0, seed=number).at(more, "training")

    def _check(self, given: Sequence[TrainingText], target: Path) -> None:
        if not given:
            return
        from trtspec.training.on_policy_check import diagnose, find_off_policy
        from trtspec.training.teacher import Teacher

        foreign = find_off_policy(given, Teacher(target, given))
        if not foreign:
            return
        with _open(target, self.settings, self.tokenizer.root) as engine:
            asked = [(each.text, SamplingOptions()) for each in foreign[:DIAGNOSED]]
            own = [text.answer for text in self._batch(engine, asked)]
        message = f"{len(foreign)} of {len(given)} answers are not the target's own: {diagnose(foreign, own, given)}"
        raise TrtspecError(message, hint=HINT)

    def _answer(
        self, wanted: Sequence[tuple[TrainingText, SamplingOptions]], target: Path, notes: Path, progress: StepProgress
    ) -> list[TrainingText]:
        """Generate responses in batches; complete batches of an interrupted run are reused."""
        rows = EngineSettings.from_json(self.settings).max_batch_size
        done = read_texts(notes)
        done = done[: len(done) // rows * rows]
        write_texts(notes, done)
        with _open(target, self.settings, self.tokenizer.root) as engine, notes.open("a", encoding="utf-8") as file:
            for start in range(len(done), len(wanted), rows):
                answered = self._batch(engine, wanted[start : start + rows])
                file.write("".join(json.dumps(asdict(text)) + "\n" for text in answered))
                file.flush()
                os.fsync(file.fileno())
                done += answered
                progress.advance(0)
                progress.set_message(f"{len(done)} of {len(wanted)}")
        return done

    def _batch(self, engine: Engine, asked: Sequence[tuple[TrainingText, SamplingOptions]]) -> list[TrainingText]:
        ends = engine.tokenizer.end_ids if engine.tokenizer else ()
        requests = [EngineRequest(text.prompt, self.max_tokens, sampling, end_ids=ends) for text, sampling in asked]
        results = engine.generate(requests)
        return [replace(text, answer=result.ids) for (text, _), result in zip(asked, results, strict=True)]


def _check_responses(tokens: set[int]) -> None:
    """Raise TrtspecError if responses with only these tokens are useless for training and evaluation."""
    if not tokens:
        raise TrtspecError("the target answers none of the prompts", hint="use different --prompts")
    if len(tokens) == 1:
        message = f"the target answers every prompt only with token {min(tokens)}"
        raise TrtspecError(message, hint="check its checkpoint: test a prompt with `trtspec generate`")


@contextmanager
def _open(target: Path, settings: str, tokenizer: Path) -> Iterator[Engine]:
    """Load the target alone into the torch engine while the block runs."""
    from trtspec.engine.engine import Engine

    engine = Engine.load(target, None, EngineSettings.from_json(settings), tokenizer)
    try:
        yield engine
    finally:
        engine.close()
