# SPDX-License-Identifier: Apache-2.0
"""Import a draft trained by an external trainer, and evaluate it like any other."""

from __future__ import annotations

from pathlib import Path

from trtspec.checkpoints.source import Source, load_source
from trtspec.core.errors import TrtspecError
from trtspec.methods.draft_formats.draft import read_draft
from trtspec.planning.pipeline import Build
from trtspec.training.answer_prompts import AnswerPrompts
from trtspec.training.evaluation import TrainResult
from trtspec.training.external.base import ExternalTrainer, find_trainer
from trtspec.training.external.job import JobRecord, TakeDraft, read_job
from trtspec.training.plan import ProgressFactory, TrainRequest, load_with_draft, require_target, source_files
from trtspec.training.run import train_and_evaluate


def import_result(asked: TrainRequest, result: Path, watching: ProgressFactory) -> TrainResult:
    """Evaluate a trainer's result in a job's directory, and publish it if it is better.

    `result` is that directory, or one of the drafts in it. TrtspecError for an inconsistent draft.
    """
    root, record = read_job(result)
    trainer = find_trainer(record.trainer)

    def taking(_: TrainRequest, build: Build, answers: AnswerPrompts) -> TakeDraft:
        trained = load_source(_trained_dir(result, root, trainer))
        return _take(trained, record, build, answers)

    return train_and_evaluate(asked, load_with_draft(asked, [record.method]), watching, taking)


def _take(trained: Source, record: JobRecord, build: Build, answers: AnswerPrompts) -> TakeDraft:
    target, sources = require_target(build.context), build.context.sources
    if (found := read_draft(trained, target)).kind != record.method:
        raise found.refuse(f"is a {found.kind} draft; the recipe's method is {record.method}")
    own = read_draft(sources["draft"], target)
    name = f"{record.trainer} {record.version}"
    return TakeDraft(
        source_files(trained), source_files(sources["target"]), answers, own.dialect, record.held_out, name
    )


def _trained_dir(result: Path, root: Path, trainer: ExternalTrainer) -> Path:
    """Return the path of the trained draft: `result`, or the trainer's output path if `result` is the job."""
    path = (root / trainer.result if result.absolute() == root else result.absolute()).resolve()
    if not path.is_relative_to(root.resolve()):
        raise TrtspecError("a link points out of the job's directory", where=str(path), hint="copy the draft there")
    if not (path / "config.json").is_file():
        hint = f"{trainer.title} writes it to {trainer.result}; choose another draft with --result"
        raise TrtspecError("no trained draft found", where=str(path), hint=hint)
    return path
