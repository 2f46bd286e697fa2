# SPDX-License-Identifier: Apache-2.0
"""The artifact of TensorRT-LLM engines: converted checkpoints, their engines, and a repository for both."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from trtspec.backends.base import ArtifactPlan
from trtspec.backends.common.steps import companion_steps, conversion_steps, padding_notes, serving_settings
from trtspec.backends.context import PlanContext
from trtspec.backends.steps.convert import ConvertCheckpoint
from trtspec.backends.steps.files import read_models
from trtspec.backends.tensorrt_llm.arguments import build_arguments
from trtspec.backends.tensorrt_llm.build import BuildEngine, DescribeEngines
from trtspec.backends.tensorrt_llm.placement import EnginePlacement, plan_placement
from trtspec.backends.tensorrt_llm.repository import (
    MODELS,
    EmitEngineRepository,
    EngineRepositorySettings,
)
from trtspec.backends.tensorrt_llm.specs import engine_specs, is_greedy_only
from trtspec.backends.tensorrt_llm.toolchain import EngineToolchain, probe_toolchain
from trtspec.methods.lookahead import LookaheadOptions
from trtspec.serving.triton.names import ENGINE_MODELS
from trtspec.store.artifact_paths import REPOSITORY, checkpoint, engine
from trtspec.store.files import FileReader
from trtspec.store.step import Step


def plan_artifact(context: PlanContext, reader: FileReader) -> ArtifactPlan:
    """Return the steps. Raise TrtspecError if another TensorRT-LLM than the recipe's is installed."""
    engine_ = context.resolved.engine
    toolchain = probe_toolchain(engine_.build.image, engine_.version, engine_.gpu)
    checkpoints = conversion_steps(context, reader)
    engines = _engines(context, reader, checkpoints, toolchain)
    placement = plan_placement(context)
    steps: dict[str, Step] = {checkpoint(role): step for role, step in checkpoints.items()}
    steps |= {engine(built.role): built for built in engines}
    steps |= companion_steps(context, reader)
    steps[REPOSITORY] = EmitEngineRepository(read_models(MODELS), _settings(context, placement))
    steps[""] = DescribeEngines(engines, json.dumps(asdict(placement), indent=2))
    return ArtifactPlan(
        steps,
        tools={"tensorrt_llm": toolchain.tensorrt_llm, "tensorrt": toolchain.tensorrt},
        gpu={"name": toolchain.gpu, "sm": toolchain.sm, "driver": toolchain.driver},
        notes=(*padding_notes(context), *_notes(toolchain)),
        devices=toolchain.devices,
        lacks={engine(built.role): lack for built in engines for lack in toolchain.missing_requirements()},
        facts={"placement": asdict(placement), "toolchain": _facts(toolchain)},
    )


def _engines(
    context: PlanContext, reader: FileReader, checkpoints: Mapping[str, ConvertCheckpoint], toolchain: EngineToolchain
) -> tuple[BuildEngine, ...]:
    build = context.resolved.engine.build
    cache = Path(build.timing_cache)
    timing_cache = (reader.read(cache.parent, [cache]),) if build.timing_cache else ()
    return tuple(
        BuildEngine(
            role,
            checkpoint,
            tuple(build_arguments(role, context)),  # type: ignore[arg-type]  # "target" or "draft"
            toolchain,
            timing_cache,
            build.timeout_s,
        )
        for role, checkpoint in checkpoints.items()
    )


def _notes(toolchain: EngineToolchain) -> tuple[str, ...]:
    if toolchain.kind != "absent":
        return ()
    return (f"this machine cannot build the engines ({toolchain.missing}); their keys may change: {toolchain.hint}",)


def _facts(toolchain: EngineToolchain) -> dict[str, Any]:
    names = ("kind", "image", "tensorrt_llm", "tensorrt", "gpu", "sm", "driver", "missing")
    return {name: getattr(toolchain, name) for name in names}


def _settings(context: PlanContext, placement: EnginePlacement) -> EngineRepositorySettings:
    recipe, options = context.resolved, context.options
    sizes = (options.window, options.ngram, options.verification) if isinstance(options, LookaheadOptions) else ()
    return EngineRepositorySettings(
        **vars(serving_settings(context)),
        method=recipe.speculation.method,
        draft_len=recipe.speculation.draft_len,
        options=json.dumps(recipe.speculation.options, sort_keys=True),
        max_seq_len=recipe.engine.max_seq_len,
        vocab_size=engine_specs(context)[0].config.vocab_size,
        target=placement.model(ENGINE_MODELS["target"]),
        draft=placement.model(ENGINE_MODELS["draft"]) if context.draft else None,
        choices=tuple(getattr(options, "paths", ())),
        lookahead=sizes,
        fast_logits=placement.fast_logits,
        greedy_only=is_greedy_only(context),
        schedule=tuple((each.max_batch, each.draft_len) for each in recipe.speculation.schedule),
    )
