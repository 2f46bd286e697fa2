# SPDX-License-Identifier: Apache-2.0
"""The artifact of Edge-LLM: prepared checkpoints, and engines if this machine can build them.

Engines are built on the device that runs them, often from an artifact of another machine. If this machine cannot build
them, the artifact contains the exported ONNX and a build script instead.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from trtspec.backends.base import ArtifactPlan
from trtspec.backends.common.steps import companion_steps
from trtspec.backends.context import PlanContext, recipe_models
from trtspec.backends.edge_llm.arguments import (
    aux_layers,
    build_command,
    export_arguments,
    model_json,
    onnx,
    quantize_arguments,
)
from trtspec.backends.edge_llm.build import (
    DescribeBuild,
    RunEdgeTool,
    StageCheckpoint,
    has_chat_template,
)
from trtspec.backends.edge_llm.repository import repository_step
from trtspec.backends.edge_llm.toolchain import EdgeToolchain, probe_toolchain
from trtspec.backends.edge_llm.versions import releases
from trtspec.checkpoints.prequantized import source_format
from trtspec.checkpoints.source import MAX_TOKENIZER_BYTES, Source, read_json
from trtspec.core.gpus import find_gpu
from trtspec.core.paths import calibration_prompts
from trtspec.recipe.schema import ModelSource
from trtspec.store.artifact_paths import REPOSITORY, checkpoint, engine
from trtspec.store.files import FileReader
from trtspec.store.step import Step


def plan_artifact(context: PlanContext, reader: FileReader) -> ArtifactPlan:
    """Return the steps. Raise TrtspecError if another Edge-LLM than the recipe's is installed."""
    engine_, tools = context.resolved.engine, probe_toolchain(context.version, context.resolved.engine.gpu)
    sources = {role: _stage(context, reader, role, source) for role, source in context.sources.items()}
    checkpoints = _quantized(context, reader, sources, tools)
    steps: dict[str, Step] = {checkpoint(role): step for role, step in checkpoints.items()}
    built = _engines(context, checkpoints, tools) if tools.builds_engines else _exports(context, checkpoints, tools)
    steps |= {**built, **companion_steps(context, reader)}
    streaming = context.resolved.serving.streaming
    steps[REPOSITORY] = repository_step(model_json(context), engine_.max_batch_size, streaming=streaming)
    steps[""] = DescribeBuild(build_command(context), tuple(_facts(context, tools).items()))
    lack = tools.lack()
    runs = [directory for directory, step in steps.items() if isinstance(step, RunEdgeTool)]
    return ArtifactPlan(
        steps,
        tools={"edge_llm": context.version, **({"tensorrt": tools.tensorrt} if tools.tensorrt else {})},
        gpu={"name": engine_.gpu, "sm": find_gpu(engine_.gpu).sm, **({"driver": tools.driver} if tools.driver else {})},
        notes=tuple(_notes(context, tools, sources)),
        devices=tools.devices,
        lacks=dict.fromkeys(runs, lack) if lack else {},
        facts={"toolchain": _tool_facts(tools), "build_command": list(build_command(context))},
    )


def _stage(context: PlanContext, reader: FileReader, role: str, source: Source) -> StageCheckpoint:
    files = reader.read(source.root, source.files)
    if role == "target":
        return StageCheckpoint(role, files, plain_template=not _has_template(source))
    return StageCheckpoint(role, files, target_layers=aux_layers(context))


def _has_template(source: Source) -> bool:
    path = source.root / "tokenizer_config.json"
    config = read_json(path, MAX_TOKENIZER_BYTES) if path.is_file() else {}
    return has_chat_template({file.name for file in source.tokenizer_files}, config)


def _quantized(
    context: PlanContext, reader: FileReader, sources: dict[str, StageCheckpoint], tools: EdgeToolchain
) -> dict[str, Step]:
    """Return the input checkpoints of engines, quantized if the recipe requests it and the source is not quantized."""
    found: dict[str, Step] = dict(sources)
    for role, _, asked in recipe_models(context):
        if needs_quantization(asked, context.sources[role]):
            found[role] = _quantize(context, reader, role, asked, sources, tools)
    return found


def needs_quantization(asked: ModelSource, source: Source) -> bool:
    """Return whether the recipe requests a format that the unquantized source lacks."""
    wanted, stored = asked.quantization, source_format(source)
    return stored.weights == "none" and (wanted.weights != "none" or wanted.kv_cache != "none")


def _quantize(
    context: PlanContext,
    reader: FileReader,
    role: str,
    asked: ModelSource,
    sources: dict[str, StageCheckpoint],
    tools: EdgeToolchain,
) -> RunEdgeTool:
    settings = asked.quantization.calibration
    prompts = Path(settings.prompts) if settings.prompts else calibration_prompts()
    argv = quantize_arguments(role, asked.quantization, tools.device)
    reads = ("target",) if role == "target" else ("target", "draft")
    step = _run(context, tools, "quantize", role, argv, {each: sources[each] for each in reads}, checkpoint(role))
    read = (reader.read(prompts.parent, [prompts]),)
    return replace(step, prompts=read, samples=settings.samples, stored_bytes=context.sources[role].nbytes // 2)


def _exports(context: PlanContext, checkpoints: dict[str, Step], tools: EdgeToolchain) -> dict[str, Step]:
    method, sm = context.method_name, find_gpu(context.resolved.engine.gpu).sm
    found: dict[str, Step] = {}
    for role in checkpoints:
        reads = {"draft": checkpoints["draft"]} if (role, method) == ("draft", "eagle3") else checkpoints
        argv = export_arguments(role, method, sm)
        step = _run(context, tools, "export", role, argv, reads, onnx(role))
        found[onnx(role)] = replace(step, stored_bytes=context.sources[role].nbytes)
    return found


def _engines(context: PlanContext, checkpoints: dict[str, Step], tools: EdgeToolchain) -> dict[str, Step]:
    step = _run(context, tools, "build", "engines", build_command(context), checkpoints, engine("target"))
    stored = sum(source.nbytes for source in context.sources.values())
    return {
        engine("target"): replace(step, machine=json.dumps(_facts(context, tools), sort_keys=True), stored_bytes=stored)
    }


def _run(
    context: PlanContext,
    tools: EdgeToolchain,
    action: str,
    role: str,
    argv: tuple[str, ...],
    reads: Mapping[str, Step],
    writes: str,
) -> RunEdgeTool:
    timeout_s, steps = context.resolved.engine.build.timeout_s, tuple(reads.values())
    step = RunEdgeTool(action, role, argv, tuple(reads), steps, writes, context.version)
    return replace(step, timeout_s=timeout_s, directory=tools.directory)


def _facts(context: PlanContext, tools: EdgeToolchain) -> dict[str, str]:
    """Return the facts that engines depend on in addition to the checkpoints, as far as they are available here."""
    gpu = find_gpu(context.resolved.engine.gpu)
    platforms = releases()[context.version].platforms_for(gpu.sm)
    fitting = sorted({version for platform in platforms for version in platform.tensorrt})
    return {
        "Edge-LLM": context.version,
        "TensorRT": tools.tensorrt or " or ".join(fitting),
        "GPU": f"{gpu.name}, compute capability {gpu.sm // 10}.{gpu.sm % 10}",
        "driver": tools.driver or "the device's driver",
    }


def _notes(context: PlanContext, tools: EdgeToolchain, sources: dict[str, StageCheckpoint]) -> Iterator[str]:
    if not tools.builds_engines:
        yield (
            f"this machine cannot build engines ({tools.why_no_engines}): the artifact contains the exported ONNX, and "
            f"reproduce.sh builds the engines on the device: {shlex.join(build_command(context))}"
        )
    if sources["target"].plain_template:
        yield "the target lacks a chat template, which Edge-LLM requires: its copy gets one that adds nothing to a text"


def _tool_facts(tools: EdgeToolchain) -> dict[str, Any]:
    keys = ("version", "directory", "missing", "tensorrt", "driver", "why_no_engines")
    return {key: getattr(tools, key) for key in keys}
