# SPDX-License-Identifier: Apache-2.0
"""The step that has the target answer the prompts, greedily and for training also sampled."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from trtspec.backends.steps.convert import ConvertCheckpoint
from trtspec.core.errors import TrtspecError
from trtspec.engine.generation.request import Request, SamplingOptions
from trtspec.engine.settings import EngineSettings
from trtspec.store.files import Files
from trtspec.store.step import Inputs, Progress, Step, notes_of
from trtspec.training.split_prompts import SplitPrompts
from trtspec.training.texts import TEXTS, TRAIN, Text, read_texts, write_texts

if TYPE_CHECKING:
    from trtspec.engine.engine import Engine

DIAGNOSED = 16  # foreign answers that are held against the target's own
HINT = "leave the answers out: the target gives its own"


@dataclass(frozen=True)
class AnswerPrompts(Step):
    """Write `texts.jsonl` with an answer of at most `max_tokens` tokens to each prompt, of a token at least.

    Answers that came with the prompts are used where the target would give them, and refused where not. `sampled` is
    how many further answers each training prompt gets, of temperature 1. `settings` are the engine's, as JSON. `model`
    is the `bare_key` of `target`: what drafts from inside it changes no answer.
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

    @property
    def name(self) -> str:
        """Return what people call it."""
        return "answer-prompts"

    def run(self, out: Path, inputs: Inputs, progress: Progress) -> None:
        """Answer; raises TrtspecError for answers that are not the target's, and where it answers nothing."""
        texts = read_texts(inputs[self.prompts] / TEXTS)
        given = [replace(text, answer=text.answer[: self.max_tokens]) for text in texts if text.given]
        with self.tokenizer.unchanged():
            self._check(given, inputs[self.target])
            wanted = list(self._wanted(texts))
            answered = self._answer(wanted, inputs[self.target], notes_of(out) / TEXTS, progress)
        found = [text for text in (*given, *answered) if text.answer]
        _check_said({token for text in found for token in text.answer})
        write_texts(out / TEXTS, found)

    def _wanted(self, texts: Sequence[Text]) -> Iterator[tuple[Text, SamplingOptions]]:
        for number, text in enumerate(texts):
            if not text.given:
                yield text, SamplingOptions()
            if text.side == TRAIN:
                for more in range(self.sampled):
                    yield replace(text, given=False), SamplingOptions(1.0, seed=number).at(more, "training")

    def _check(self, given: Sequence[Text], target: Path) -> None:
        if not given:
            return
        from trtspec.training.on_policy_check import diagnose, foreign_answers
        from trtspec.training.teacher import Teacher

        foreign = foreign_answers(given, Teacher(target, given))
        if not foreign:
            return
        with _open(target, self.settings, self.tokenizer.root) as engine:
            asked = [(each.text, SamplingOptions()) for each in foreign[:DIAGNOSED]]
            own = [text.answer for text in self._batch(engine, asked)]
        message = f"{len(foreign)} of {len(given)} answers are not the target's own: {diagnose(foreign, own, given)}"
        raise TrtspecError(message, hint=HINT)

    def _answer(
        self, wanted: Sequence[tuple[Text, SamplingOptions]], target: Path, notes: Path, progress: Progress
    ) -> list[Text]:
        """Answer batch by batch; those of an interrupted run that are whole are taken from the notes."""
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
                progress.say(f"{len(done)} of {len(wanted)}")
        return done

    def _batch(self, engine: Engine, asked: Sequence[tuple[Text, SamplingOptions]]) -> list[Text]:
        ends = engine.tokenizer.end_ids if engine.tokenizer else ()
        requests = [Request(text.prompt, self.max_tokens, sampling, end_ids=ends) for text, sampling in asked]
        results = engine.generate(requests)
        return [replace(text, answer=result.ids) for (text, _), result in zip(asked, results, strict=True)]


def _check_said(tokens: set[int]) -> None:
    """Raise TrtspecError where answers of these tokens teach nothing, and prove nothing."""
    if not tokens:
        raise TrtspecError("the target answers no prompt", hint="name other --prompts")
    if len(tokens) == 1:
        message = f"the target answers every prompt with token {min(tokens)} alone"
        raise TrtspecError(message, hint="ask it something with `trtspec generate`: is its checkpoint whole?")


@contextmanager
def _open(target: Path, settings: str, tokenizer: Path) -> Iterator[Engine]:
    """Load the target alone into the torch engine, for as long as the block runs."""
    from trtspec.engine.engine import Engine

    engine = Engine.load(target, None, EngineSettings.from_json(settings), tokenizer)
    try:
        yield engine
    finally:
        engine.close()
