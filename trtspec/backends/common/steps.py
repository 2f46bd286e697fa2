# SPDX-License-Identifier: Apache-2.0
"""Steps that the artifacts of all backends share: checkpoints, tokenizer, prompts and plugins."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from trtspec.backends.base import ArtifactPlan
from trtspec.backends.context import PlanContext
from trtspec.backends.steps.convert import Calibrate, ConvertCheckpoint, ConvertOtherVocabulary, HeadFiles, plan_model
from trtspec.backends.steps.files import CompilePlugins, CopyFiles, EmitRepository, plan_recipe_library
from trtspec.checkpoints.generation_config import CONFIG
from trtspec.checkpoints.source_model import SourceModel, parallel_mapping, requested_scheme
from trtspec.core.paths import calibration_prompts
from trtspec.methods.base import method_version
from trtspec.methods.draft_head import SourceHead
from trtspec.recipe.resolve import ResolvedModel
from trtspec.serving.triton.repository_writer import ServingSettings
from trtspec.store.artifact_paths import PLUGINS, PROMPTS, REPOSITORY, TOKENIZER, checkpoint, from_model
from trtspec.store.files import FileReader
from trtspec.store.step import Step


def conversion_steps(context: PlanContext, reader: FileReader) -> dict[str, ConvertCheckpoint]:
    """Return the conversions by role: "target", and "draft" if there is a draft model."""
    recipe = context.resolved
    if context.target is None:
        raise ValueError("only a model with a family can be converted")
    found = {"target": _convert(reader, "target", recipe.target, context.target, _heads(context, reader), context.head)}
    if context.draft:
        found["draft"] = _convert(reader, "draft", recipe.speculation.drafts[0], context.draft)
    if context.translates:
        sources = context.sources["target"], context.sources["draft"]
        target, draft = (reader.read(source.root, source.tokenizer_files) for source in sources)
        found["draft"] = ConvertOtherVocabulary.of(found["draft"], (target, draft), context.target.config.vocab_size)
    return found


def copy_steps(context: PlanContext, reader: FileReader) -> dict[str, CopyFiles]:
    """Return the steps that copy the checkpoints unchanged, by directory, for backends without conversion."""
    return {
        checkpoint(role): CopyFiles(role, reader.read(source.root, source.files))
        for role, source in context.sources.items()
    }


def served_path(role: str) -> str:
    """Return the path of a checkpoint relative to a model of the repository."""
    return from_model(checkpoint(role))


def padding_notes(context: PlanContext) -> tuple[str, ...]:
    """Return a note if the draft's vocabulary is padded or cut."""
    draft = context.draft
    if draft is None or not draft.padded_to:
        return ()
    stored = draft.source.config["vocab_size"]
    what = "padded with zeros" if stored < draft.padded_to else "cut"
    return (f"the draft's embedding and head are {what} from {stored} to the target's {draft.padded_to} rows",)


def plan_source_artifact(
    context: PlanContext,
    reader: FileReader,
    package: str,
    repository: EmitRepository,
    facts: Mapping[str, Any],
    problems: Callable[[], list[str]] = list,
) -> ArtifactPlan:
    """Return the artifact of a backend whose engine, of the Python `package`, runs the checkpoints unchanged."""
    steps = {**copy_steps(context, reader), **companion_steps(context, reader), REPOSITORY: repository}
    gpu = {"name": name} if (name := context.resolved.engine.gpu) else {}
    return ArtifactPlan(steps, tools={package: context.version}, gpu=gpu, facts=facts, problems=problems)


def serving_settings(context: PlanContext) -> ServingSettings:
    """Return the settings that all models of a repository share."""
    serving = context.resolved.serving
    return ServingSettings(
        max_batch_size=context.resolved.engine.max_batch_size,
        max_queue_size=serving.max_queue_size,
        max_queue_delay_us=serving.max_queue_delay_us,
        streaming=serving.streaming,
        warmup=serving.warmup,
        defaults=serving.defaults,
    )


def companion_steps(context: PlanContext, reader: FileReader) -> dict[str, Step]:
    """Return the steps for the models' companion files: tokenizer, prompts of the gates, compiled plugins."""
    recipe, source = context.resolved, context.sources["target"]
    # config.json may be the only file with the end-of-text ids
    documents = [*source.tokenizer_files, source.root / CONFIG]
    steps: dict[str, Step] = {TOKENIZER: CopyFiles("tokenizer", reader.read(source.root, documents))}
    if recipe.gates.prompts:
        prompts = Path(recipe.gates.prompts)
        steps[PROMPTS] = CopyFiles("prompts", reader.read(prompts.parent, [prompts]))
    if recipe.plugins:
        steps[PLUGINS] = CompilePlugins(plan_recipe_library(recipe.plugins, recipe.engine.gpu))
    return steps


def _heads(context: PlanContext, reader: FileReader) -> tuple[HeadFiles, ...]:
    """Return the files of the head inside the target, or an empty tuple."""
    speculation, head = context.resolved.speculation, context.head
    if head is None:
        return ()
    source, method = head.source, speculation.method
    files = reader.read(source.root, [*source.documents, *source.weight_files])
    options = json.dumps(speculation.options, sort_keys=True)
    return (HeadFiles(method, method_version(method), options, speculation.draft_len, files, source.nbytes),)


def _convert(
    reader: FileReader,
    role: str,
    asked: ResolvedModel,
    model: SourceModel,
    heads: tuple[HeadFiles, ...] = (),
    head: SourceHead | None = None,
) -> ConvertCheckpoint:
    source, wanted = model.source, requested_scheme(asked)
    weights = reader.read(source.root, [*source.documents, *source.weight_files])
    calibration: tuple[Calibrate, ...] = ()
    if model.needs_calibration(wanted):
        settings = asked.quantization.calibration
        prompts = Path(settings.prompts) if settings.prompts else calibration_prompts()
        calibration = (
            Calibrate(
                role,
                weights,
                tokenizer=reader.read(source.root, source.tokenizer_files),
                prompts=reader.read(prompts.parent, [prompts]),
                samples=settings.samples,
                max_len=settings.max_len,
                nbytes=source.nbytes,
            ),
        )
    layouts = plan_model(model, head, parallel_mapping(asked), wanted).layouts()
    return ConvertCheckpoint(
        role,
        weights,
        model.family_version,
        asked.dtype,
        mapping=parallel_mapping(asked),
        scheme=model.scheme(wanted),
        calibration=calibration,
        heads=heads,
        allow_nonfinite=asked.allow_nonfinite,
        vocab_size=model.padded_to,
        nbytes=source.nbytes + sum(each.nbytes for each in heads),
        stored_bytes=sum(layout.nbytes for layout in layouts),
    )
