# SPDX-License-Identifier: Apache-2.0
"""The steps that every engine's artifact begins with: converted checkpoints, tokenizer, prompts."""

from __future__ import annotations

import json
from pathlib import Path

from trtspec.graph.step import Step
from trtspec.backends.artifact_plan import Ground
from trtspec.methods.base import method_version
from trtspec.paths import default_prompts
from trtspec.recipe.resolve import ResolvedModel
from trtspec.steps.calibrate import Calibrate
from trtspec.steps.convert import ConvertCheckpoint, PartFiles
from trtspec.steps.copy import CopyFiles
from trtspec.models.source_model import SourceModel, mapping_of, scheme_wanted
from trtspec.steps.plugin import CompilePlugins, library_of


def converted(ground: Ground) -> dict[str, ConvertCheckpoint]:
    """Return the conversions by role: "target", and "draft" where a model drafts."""
    recipe, findings = ground.recipe, ground.findings
    if findings.target is None:
        raise ValueError("only a model that a family describes is converted")
    found = {"target": _convert(ground, "target", recipe.target, findings.target, _parts(ground))}
    if findings.draft:
        found["draft"] = _convert(ground, "draft", recipe.speculation.drafts[0], findings.draft, ())
    return found


def copied(ground: Ground) -> dict[str, CopyFiles]:
    """Return the steps that bring the checkpoints along as they are, by directory: what no engine converts."""
    return {
        f"checkpoints/{role}": CopyFiles(role, ground.reader.read(source.root, source.files))
        for role, source in ground.findings.sources.items()
    }


def served_path(role: str) -> str:
    """Return where a model of the repository finds a checkpoint, from its own directory."""
    return f"../../checkpoints/{role}"


def padding_notes(ground: Ground) -> tuple[str, ...]:
    """Say where a draft's vocabulary is padded."""
    draft = ground.findings.draft
    if draft is None or not draft.padded_to:
        return ()
    rows = f"{draft.source.config['vocab_size']} to the target's {draft.padded_to} rows"
    return (f"the draft's embedding and head are padded with zeros from {rows}",)


def companions(ground: Ground) -> dict[str, Step]:
    """Return the steps of what goes along with the models: tokenizer, prompts of the gates, compiled plugins."""
    source = ground.findings.sources["target"]
    steps: dict[str, Step] = {
        "tokenizer": CopyFiles("tokenizer", ground.reader.read(source.root, source.tokenizer_files))
    }
    if ground.recipe.gates.prompts:
        prompts = Path(ground.recipe.gates.prompts)
        steps["prompts"] = CopyFiles("prompts", ground.reader.read(prompts.parent, [prompts]))
    if ground.recipe.plugins:
        steps["plugins"] = CompilePlugins(library_of(ground.recipe.plugins, ground.recipe.engine.gpu))
    return steps


def _parts(ground: Ground) -> tuple[PartFiles, ...]:
    """Return what drafts from inside the target, if anything does."""
    recipe, part = ground.recipe, ground.findings.part
    if part is None:
        return ()
    source, method = part.source, recipe.speculation.method
    files = ground.reader.read(source.root, [*source.documents, *source.weight_files])
    options = json.dumps(recipe.speculation.options, sort_keys=True)
    draft_len = recipe.speculation.draft_len
    return (PartFiles(method, method_version(method), options, draft_len, files, source.nbytes),)


def _convert(
    ground: Ground, role: str, asked: ResolvedModel, model: SourceModel, parts: tuple[PartFiles, ...]
) -> ConvertCheckpoint:
    source, wanted, reader = model.source, scheme_wanted(asked), ground.reader
    weights = reader.read(source.root, [*source.documents, *source.weight_files])
    calibration: tuple[Calibrate, ...] = ()
    if model.needs_calibration(wanted):
        settings = asked.quantization.calibration
        prompts = Path(settings.prompts) if settings.prompts else default_prompts()
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
    return ConvertCheckpoint(
        role,
        weights,
        model.family_version,
        asked.dtype,
        mapping=mapping_of(asked),
        scheme=model.scheme(wanted),
        calibration=calibration,
        parts=parts,
        allow_nonfinite=asked.allow_nonfinite,
        vocab_size=model.padded_to,
        nbytes=source.nbytes + sum(part.nbytes for part in parts),
    )
