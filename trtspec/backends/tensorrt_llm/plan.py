# SPDX-License-Identifier: Apache-2.0
"""The artifact of TensorRT-LLM engines: converted checkpoints, the engines built of them, and a repository for both."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trtspec.backends.tensorrt_llm.arguments import build_arguments
from trtspec.backends.tensorrt_llm.placement import MODEL_NAMES, Placement, plan_placement
from trtspec.backends.tensorrt_llm.sampling import is_greedy_only
from trtspec.backends.tensorrt_llm.specs import engine_specs
from trtspec.backends.tensorrt_llm.toolchain import Toolchain, probe_toolchain
from trtspec.graph.step import Step
from trtspec.backends.artifact_plan import Ground, Layout
from trtspec.backends.common_steps import companions, converted, padding_notes
from trtspec.methods.lookahead import LookaheadOptions
from trtspec.steps.convert import ConvertCheckpoint
from trtspec.backends.tensorrt_llm.build import BuildEngine, DescribeEngines
from trtspec.steps.repository import EmitEngineRepository, read_models
from trtspec.backends.tensorrt_llm.repository import EngineRepositorySettings, EngineServing, LookaheadSizes


def layout(ground: Ground) -> Layout:
    """Return the steps; raises TrtspecError where another TensorRT-LLM than the recipe's is installed."""
    engine = ground.recipe.engine
    toolchain = probe_toolchain(engine.build.image, engine.version, engine.gpu)
    checkpoints = converted(ground)
    engines = _engines(ground, checkpoints, toolchain)
    placement = plan_placement(ground.case)
    steps: dict[str, Step] = {f"checkpoints/{role}": step for role, step in checkpoints.items()}
    steps |= {f"engines/{built.role}": built for built in engines}
    steps |= companions(ground)
    steps["model_repository"] = EmitEngineRepository(read_models(), _settings(ground, placement))
    steps[""] = DescribeEngines(engines, json.dumps(placement.as_dict(), indent=2))
    return Layout(
        steps,
        tools={"tensorrt_llm": toolchain.tensorrt_llm, "tensorrt": toolchain.tensorrt},
        gpu={"name": toolchain.gpu, "sm": toolchain.sm, "driver": toolchain.driver},
        notes=(*padding_notes(ground), *_notes(toolchain)),
        devices=toolchain.devices,
        facts={"placement": placement.as_dict(), "toolchain": _facts(toolchain)},
    )


def _engines(
    ground: Ground, checkpoints: Mapping[str, ConvertCheckpoint], toolchain: Toolchain
) -> tuple[BuildEngine, ...]:
    build = ground.recipe.engine.build
    cache = Path(build.timing_cache)
    timing_cache = (ground.reader.read(cache.parent, [cache]),) if build.timing_cache else ()
    return tuple(
        BuildEngine(
            role,
            checkpoint,
            tuple(build_arguments(role, ground.case)),  # type: ignore[arg-type]  # "target" or "draft"
            toolchain,
            timing_cache,
            build.timeout_s,
        )
        for role, checkpoint in checkpoints.items()
    )


def _notes(toolchain: Toolchain) -> tuple[str, ...]:
    if toolchain.kind != "absent":
        return ()
    return (f"the engines cannot be built here ({toolchain.missing}), so their keys are not final: {toolchain.hint}",)


def _facts(toolchain: Toolchain) -> dict[str, Any]:
    names = ("kind", "image", "tensorrt_llm", "tensorrt", "gpu", "sm", "driver", "missing")
    return {name: getattr(toolchain, name) for name in names}


def _settings(ground: Ground, placement: Placement) -> EngineRepositorySettings:
    engine, serving, speculation = ground.recipe.engine, ground.recipe.serving, ground.recipe.speculation
    options, target = ground.case.options, engine_specs(ground.case)[0]
    placed = {role: _placed(placement, name) for role, name in MODEL_NAMES.items()}
    draft = placed["draft"] if ground.findings.draft else None
    if placed["target"] is None:
        raise ValueError("every repository has a target")
    sizes = None
    if isinstance(options, LookaheadOptions):
        sizes = LookaheadSizes(options.window, options.ngram, options.verification)
    return EngineRepositorySettings(
        method=speculation.method,
        draft_len=speculation.draft_len,
        options=json.dumps(speculation.options, sort_keys=True),
        max_batch_size=engine.max_batch_size,
        max_seq_len=engine.max_seq_len,
        vocab_size=target.config.vocab_size,
        max_queue_size=serving.max_queue_size,
        max_queue_delay_us=serving.max_queue_delay_us,
        streaming=serving.streaming,
        target=placed["target"],
        draft=draft,
        choices=tuple(getattr(options, "paths", ())),
        lookahead=sizes,
        fast_logits=placement.fast_logits,
        greedy_only=is_greedy_only(ground.case),
    )


def _placed(placement: Placement, name: str) -> EngineServing | None:
    for model in placement.models:
        if model.name == name:
            return EngineServing(
                gpu_ids=model.gpu_device_ids,
                kv_cache_fraction=model.kv_cache_fraction,
                participant_ids=model.participant_ids,
                max_cache_tokens=model.max_cache_tokens,
                chunked_context=model.chunked_context,
            )
    return None


LAYOUT = layout
