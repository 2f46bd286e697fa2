# SPDX-License-Identifier: Apache-2.0
"""A job for an external trainer: a directory to copy to a GPU machine, and the import of the draft trained there.

The draft is evaluated like any other. The directory contains:

    rows.jsonl            token ids and masks of the training split only
    run.yaml              the trainer's configuration
    run.sh, README.md     commands and instructions
    draft/                the recipe's draft in the trainer's dialect
    trtspec_job.json      the job's record, with the digest of the evaluation prompts
"""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import yaml
from pydantic import Field, ValidationError

from trtspec.bench.sources import RECORD
from trtspec.checkpoints.source import load_source
from trtspec.checkpoints.tokenizer import Tokenizer
from trtspec.checkpoints.writer import check_new, new_directory
from trtspec.core.diagnostics import first_invalid
from trtspec.core.errors import TrtspecError
from trtspec.core.files import read_bounded
from trtspec.methods.draft_formats.convert import RenderedDraft, convert_draft, render_draft
from trtspec.methods.draft_formats.draft import read_draft
from trtspec.planning.pipeline import Build
from trtspec.recipe.schema import StrictModel
from trtspec.store.files import Files
from trtspec.store.step import Inputs, Step, StepProgress
from trtspec.training.draft_steps import AnswerPrompts, check_held_out
from trtspec.training.evaluation import TrainResult
from trtspec.training.external.base import (
    CONFIG,
    DRAFT,
    LEARNING_RATE,
    ROWS,
    ExternalTrainer,
    TrainingJob,
    find_trainer,
    held_out_digest,
    make_row,
    training_texts,
    write_lines,
)
from trtspec.training.plan import (
    ProgressFactory,
    TrainRequest,
    answer_step,
    load_with_draft,
    plan_recipe,
    require_target,
    run_steps,
    source_files,
    train_and_evaluate,
)
from trtspec.training.texts import TEXTS, TrainingText, read_texts

JOB = "trtspec_job.json"
MOST_BYTES = 1 << 16
Word = Annotated[str, Field(min_length=1, max_length=256)]
RUN = """\
#!/bin/sh
# Trains the draft; run on the GPU machine. TARGET is the target's directory or hub id there.
set -eu
cd "$(dirname "$0")"
TARGET=${{TARGET:-{target}}}
{commands}"""
README = """\
# {record.method} of {record.name}, trained by {trainer.title} {trainer.version}

Requirements: {trainer.needs} ({trainer.source}).

    TARGET={target} sh run.sh

rows.jsonl contains the {record.rows} rows of the training split ({record.tokens} tokens of answers) and nothing else;
{record.left_out} could not be written for this trainer. run.yaml configures the training and its length.
The trained draft is in {trainer.result} afterwards. Copy this directory back to the recipe's machine and run:

    trtspec train RECIPE --prompts FILE --result DIRECTORY

with the options that wrote it. The draft is then converted and measured on the held-out prompts.
"""


class JobRecord(StrictModel):
    """Record of a job, printed by `trtspec train --trainer NAME --json`; `held_out` is the evaluation prompts' digest.

    `rows` and `tokens` count the training data, `left_out` the rows unsuitable for the trainer.
    """

    format_version: Literal[1] = 1
    name: Word
    method: Word
    trainer: Word
    version: Word
    rows: int
    tokens: int
    left_out: int
    held_out: Annotated[str, Field(pattern="[0-9a-f]{64}")]
    warnings: list[str]


def read_job(result: Path) -> tuple[Path, JobRecord]:
    """Return (directory, record) of the job at or above `result`; raise TrtspecError if a job is not found."""
    path = result.absolute()
    root = next((each for each in (path, *path.parents) if (each / JOB).is_file()), None)
    if root is None:
        hint = "put the draft into the directory that `trtspec train --trainer` wrote"
        raise TrtspecError(f"no {JOB} here or above: the held-out prompts are unknown", where=str(result), hint=hint)
    try:
        return root, JobRecord.model_validate_json(read_bounded(root / JOB, MOST_BYTES))
    except ValidationError as error:
        message = f"not written by trtspec: {first_invalid(error)}"
        raise TrtspecError(message, where=str(root / JOB), hint="copy it again, or write the job again") from None


def write_job(request: TrainRequest, name: str, watching: ProgressFactory) -> tuple[Path, JobRecord]:
    """Generate the target's responses and write the job of the named trainer; return its directory and record.

    Raises TrtspecError, before anything is written, if the job is not possible.
    """
    trainer = find_trainer(name)
    loaded = load_with_draft(request, trainer.kinds)
    out = request.out or Path("drafts") / f"{loaded.recipe.name}-{name}"
    check_new(out)
    build = plan_recipe(loaded, watching)
    recipe, sources = build.recipe, build.context.sources
    dialect, target = trainer.kinds[recipe.speculation.method].dialect, str(sources["target"].root)
    draft = render_draft(sources["draft"].root, dialect, target, named=recipe.target.model)
    job = _job(request, build, trainer, draft)
    render_config(trainer, job)  # report unsupported drafts before generating responses
    (answered,) = run_steps([answer_step(request, build)], build, watching)
    texts = read_texts(answered / TEXTS)
    check_held_out(texts)
    with new_directory(out) as root:
        draft.write(root / DRAFT)
        return out, _write(root, name, trainer, job, build, texts)


def _write(
    root: Path, name: str, trainer: ExternalTrainer, job: TrainingJob, build: Build, texts: list[TrainingText]
) -> JobRecord:
    rows, recipe = training_texts(texts), build.recipe
    job = job.model_copy(update={"longest": max(len(text.tokens) for text in rows)})
    (root / CONFIG).write_text(render_config(trainer, job))
    write_lines(root / ROWS, map(make_row, rows))
    family = require_target(build.context).family
    message = f"{trainer.title} has published no draft for {family} targets"
    record = JobRecord(
        name=recipe.name,
        method=recipe.speculation.method,
        trainer=name,
        version=trainer.version,
        rows=len(rows),
        tokens=sum(len(text.answer) for text in rows),
        left_out=trainer.further(job, root, rows, Tokenizer(build.context.sources["target"].root)),
        held_out=held_out_digest(texts),
        warnings=[] if family in trainer.families else [f"{message}: {', '.join(sorted(trainer.families))}"],
    )
    target = shlex.quote(job.target)
    (root / "run.sh").write_text(RUN.format(target=target, commands=trainer.commands(job)))
    (root / "README.md").write_text(README.format(target=target, record=record, trainer=trainer))
    (root / JOB).write_text(record.model_dump_json(indent=2) + "\n")
    return record


def _job(request: TrainRequest, build: Build, trainer: ExternalTrainer, draft: RenderedDraft) -> TrainingJob:
    """Return the job, without its longest row, which is not known yet."""
    target, settings = require_target(build.context), request.settings
    try:
        return TrainingJob(
            kind=trainer.kinds[draft.draft.kind],
            target=build.recipe.target.model,
            layers=target.config.num_layers,
            captured=draft.draft.layers_read(target.config.num_layers),
            draft=draft.config,
            draft_len=build.context.draft_shape.max_depth,
            maps=draft.draft.facts["draft_vocab_size"] < target.config.vocab_size,
            learning_rate=settings.learning_rate or LEARNING_RATE,
            steps=settings.steps or None,
            seed=settings.seed,
        )
    except ValidationError as error:
        message = f"{trainer.title}, {first_invalid(error)}, got {error.errors()[0]['input']!r}"
        raise TrtspecError(message, hint="change the corresponding option") from None


def render_config(trainer: ExternalTrainer, job: TrainingJob) -> str:
    """Return run.yaml; raise TrtspecError for a draft that the trainer does not support."""
    return yaml.safe_dump(_without_none(trainer.config(job)), sort_keys=False)


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(each) for key, each in value.items() if each is not None}
    return value


@dataclass(frozen=True)
class TakeDraft(Step):
    """Step that writes the draft in `source` in the dialect of the previous draft.

    `target` is the target's directory, `held_out` the digest of the prompts excluded from the job's rows, and `trainer`
    the name of the trainer.
    """

    VERSION: ClassVar[int] = 1

    source: Files
    target: Files
    texts: AnswerPrompts
    dialect: str
    held_out: str
    trainer: str

    def run(self, out: Path, inputs: Inputs, progress: StepProgress) -> None:
        """Convert the draft; raise TrtspecError if the held-out prompts changed or the draft is inconsistent."""
        if held_out_digest(read_texts(inputs[self.texts] / TEXTS)) != self.held_out:
            message = "the held-out prompts changed since its rows were written, so it may have been trained on them"
            hint = "use the same --prompts, --regression-prompts, --held-out, --seed and --max-tokens as before"
            raise TrtspecError(message, where=str(self.source.root), hint=hint)
        with self.source.unchanged(), self.target.unchanged():
            converted = convert_draft(self.source.root, self.dialect, out / "draft", str(self.target.root))
        for path in (out / "draft").iterdir():
            path.rename(out / path.name)
        (out / "draft").rmdir()
        record = {"trainer": self.trainer, "dialect": converted.draft.dialect}
        (out / RECORD).write_text(json.dumps(record) + "\n")


def import_result(request: TrainRequest, result: Path, watching: ProgressFactory) -> TrainResult:
    """Evaluate a trainer's result and publish it if it is better; raise TrtspecError for an inconsistent draft.

    `result` is a job's directory, or one of the drafts in it.
    """
    root, record = read_job(result)
    trainer = find_trainer(record.trainer)

    def taking(_: TrainRequest, build: Build, answers: AnswerPrompts) -> TakeDraft:
        trained = load_source(_find_result(result, root, trainer))
        target, sources = require_target(build.context), build.context.sources
        if (found := read_draft(trained, target)).kind != record.method:
            raise found.refuse(f"is a {found.kind} draft; the recipe's method is {record.method}")
        files, dialect = source_files(sources["target"]), read_draft(sources["draft"], target).dialect
        name = f"{record.trainer} {record.version}"
        return TakeDraft(source_files(trained), files, answers, dialect, record.held_out, name)

    return train_and_evaluate(request, load_with_draft(request, [record.method]), watching, taking)


def _find_result(result: Path, root: Path, trainer: ExternalTrainer) -> Path:
    """Return the path of the trained draft: `result`, or the trainer's output path if `result` is the job."""
    path = (root / trainer.result if result.absolute() == root else result.absolute()).resolve()
    if not path.is_relative_to(root.resolve()):
        raise TrtspecError("a link points out of the job's directory", where=str(path), hint="copy the draft there")
    if not (path / "config.json").is_file():
        hint = f"{trainer.title} writes it to {trainer.result}; choose another draft with --result"
        raise TrtspecError("no trained draft found", where=str(path), hint=hint)
    return path
