# SPDX-License-Identifier: Apache-2.0
"""Steps that generate the target's responses to the prompts, and create, measure and train a draft on them.

Responses are greedy, and for training also sampled. Acceptance is measured on the held-out prompts.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, ClassVar

from trtspec.backends.common.convert import ConvertCheckpoint
from trtspec.bench.profile.acceptance import StepCounts
from trtspec.bench.profile.candidates import SampleText
from trtspec.bench.profile.engine_profiler import replayed
from trtspec.bench.sources import RECORD
from trtspec.checkpoints.source_model import load_model
from trtspec.checkpoints.writer import write_config, write_tensors
from trtspec.core.errors import TrtspecError
from trtspec.engine.generation.request import EngineRequest, SamplingOptions
from trtspec.engine.settings import EngineSettings
from trtspec.store.files import Files
from trtspec.store.step import Inputs, Step, StepProgress, notes_dir
from trtspec.training.evaluation import MIN_EVAL_PROMPTS
from trtspec.training.split_prompts import SplitPrompts
from trtspec.training.texts import (
    HELD_OUT,
    TEXTS,
    TRAIN,
    VALIDATION,
    Sizes,
    TrainingText,
    TrainSettings,
    read_texts,
    write_texts,
)

if TYPE_CHECKING:
    from trtspec.engine.engine import Engine


DIAGNOSED = 16  # number of off-policy responses to compare with the target's
HINT = "remove the answers; the target generates them"


@dataclass(frozen=True)
class AnswerPrompts(Step):
    """Step that writes `texts.jsonl` with a response of 1 to `max_tokens` tokens for each prompt.

    Responses in the prompt file are used if they are on-policy; otherwise the step fails. `sampled` is the number of
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
        """Generate responses; raise TrtspecError if given responses are off-policy or the target generates none."""
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
        from trtspec.training.batches import Teacher, diagnose, find_off_policy  # imports torch

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
    """Load the target without a draft into the torch engine for the duration of the block."""
    from trtspec.engine.engine import Engine

    engine = Engine(target, None, EngineSettings.from_json(settings), tokenizer)
    try:
        yield engine
    finally:
        engine.close()


STORED = {"bfloat16": "BF16", "float16": "F16"}
COUNTS = "counts.json"
VALIDATION_TEXTS = 48


@dataclass(frozen=True)
class MakeDraft(Step):
    """Step that writes a new draft for the model in `target`, as a Hugging Face directory in a supported dialect.

    The draft proposes `draft_len` consecutive tokens; the training texts determine its draft vocabulary.
    """

    VERSION: ClassVar[int] = 2

    target: Files
    texts: AnswerPrompts
    method: str
    draft_len: int
    sizes: Sizes
    seed: int

    def run(self, out: Path, inputs: Inputs, progress: StepProgress) -> None:
        """Create the draft; raise TrtspecError for sizes that do not match the target."""
        from trtspec.training.tensors import make_part
        from trtspec.training.trainable import DraftInitializer, find_trainable  # imports torch

        texts = [text for text in read_texts(inputs[self.texts] / TEXTS) if text.side == TRAIN]
        with self.target.unchanged():
            model = load_model(self.target.root, "auto")
            origin = DraftInitializer(model, texts, self.draft_len, self.sizes, self.seed)
            blank = find_trainable(self.method).make(origin)
        write_config(out, blank.config)
        dtype = STORED[model.config.dtype]
        write_tensors(out / blank.file, [make_part(name, each, dtype) for name, each in blank.tensors.items()])
        for path in model.source.tokenizer_files if blank.has_tokenizer else ():
            shutil.copyfile(path, out / path.name)


@dataclass(frozen=True)
class MeasureDraft(Step):
    """Step that writes `counts.json`: the acceptance counts of each held-out text.

    `settings` are the engine's, as JSON; `when` ("before" or "after") only affects the step's name.
    """

    VERSION: ClassVar[int] = 1

    when: str = field(metadata={"key": False})
    target: ConvertCheckpoint
    draft: tuple[ConvertCheckpoint, ...]
    texts: AnswerPrompts
    settings: str

    @property
    def name(self) -> str:
        return f"measure-{self.when}"

    def run(self, out: Path, inputs: Inputs, progress: StepProgress) -> None:
        """Replay the draft on the held-out texts; raise TrtspecError if the target's responses are too short."""
        from trtspec.engine.speculator import Speculator

        texts = read_held_out(inputs[self.texts])
        if not texts:
            raise TrtspecError("the target answers no held-out prompt with two tokens", hint="use different prompts")
        draft = inputs[self.draft[0]] if self.draft else None
        speculator = Speculator.load(inputs[self.target], draft, EngineSettings.from_json(self.settings))
        held_out = [SampleText(text.prompt, text.answer, text.label) for text in texts]
        depth = speculator.draft_shape.max_depth
        found = replayed(
            "held-out", speculator, held_out, [depth], lambda what, done, total: progress.set_message(f"{done}/{total}")
        )
        (out / COUNTS).write_text(json.dumps([asdict(counts) for counts in found[depth].texts]))


def evaluation_texts(texts: Sequence[TrainingText]) -> list[TrainingText]:
    """Return the evaluation texts: held-out texts whose response has a token that can be drafted."""
    return [text for text in texts if text.side == HELD_OUT and len(text.answer) > 1]


def read_held_out(answers: Path) -> list[TrainingText]:
    """Load the evaluation texts from the output directory of `AnswerPrompts`."""
    return evaluation_texts(read_texts(answers / TEXTS))


def read_counts(path: Path) -> list[StepCounts]:
    """Load the counts from the output directory of `MeasureDraft`, in the order of `evaluation_texts`."""
    return [
        StepCounts(each["steps"], each["drafted"], each["accepted"], tuple(each["reached"]), tuple(each["drafted_at"]))
        for each in json.loads((path / COUNTS).read_text())
    ]


@dataclass(frozen=True)
class TrainDraft(Step):
    """Step that trains the draft in `source` for its target, and writes a Hugging Face directory of the same layout."""

    VERSION: ClassVar[int] = 1
    RESUMABLE: ClassVar[bool] = True

    target: ConvertCheckpoint
    source: Files
    texts: AnswerPrompts
    method: str
    draft_len: int
    settings: TrainSettings

    def run(self, out: Path, inputs: Inputs, progress: StepProgress) -> None:
        """Train; raise TrtspecError for a draft that cannot be trained, and for unsuitable responses."""
        from trtspec.training.batches import TargetOutputs, Teacher
        from trtspec.training.tensors import write_checkpoint
        from trtspec.training.trainable import DraftSource, find_trainable  # imports torch
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
            trained = training.run(progress.set_message)
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
