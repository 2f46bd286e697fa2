# SPDX-License-Identifier: Apache-2.0
"""The artifact of Edge-LLM: prepared checkpoints, engines if this machine can build them, and a Triton repository.

    ensemble: edge_llm (1/model.json has the start arguments of Edge-LLM)

Engines are built on the device that serves them, often from an artifact that another machine built. If this machine
cannot build them, the artifact contains the exported ONNX and a build script instead. Engines are served by a Triton
Python model over Edge-LLM's Python API, behind an ensemble with the tensors of NVIDIA's ensemble.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from trtspec.backends.base import SHARED_MODELS, ArtifactPlan
from trtspec.backends.common.steps import (
    TEXT_INPUTS,
    EmitModels,
    companion_steps,
    read_calibration,
    read_models,
)
from trtspec.backends.context import PlanContext, recipe_models
from trtspec.backends.edge_llm import arguments
from trtspec.backends.edge_llm.build import CHAT_TEMPLATE, DescribeBuild, RunEdgeTool, StageCheckpoint
from trtspec.backends.edge_llm.toolchain import EdgeToolchain, probe_toolchain, releases
from trtspec.backends.serving import ServingHooks, require_package
from trtspec.checkpoints.prequantized import source_format
from trtspec.checkpoints.source import MAX_TOKENIZER_BYTES, Source, read_json
from trtspec.core.errors import DeployError
from trtspec.core.gpus import detect_gpus, find_gpu
from trtspec.recipe.resolve import ResolvedRecipe
from trtspec.serving.triton.names import ENSEMBLE
from trtspec.serving.triton.repository_writer import Parameters, ServingSettings
from trtspec.store.artifact import Manifest
from trtspec.store.artifact_paths import REPOSITORY, TOKENIZER, checkpoint, engine, from_model
from trtspec.store.files import FileReader
from trtspec.store.step import Step

MODELS = Path(__file__).with_name("models")
MODEL = "edge_llm"
MODEL_JSON = Path(MODEL, "1", "model.json")
TOOL_FACTS = ("version", "directory", "missing", "tensorrt", "driver", "why_no_engines")


def plan_artifact(context: PlanContext, reader: FileReader) -> ArtifactPlan:
    """Return the steps of an artifact; raise TrtspecError if the installed Edge-LLM is not the recipe's version."""
    engine_ = context.resolved.engine
    tools = context.builder_tools(partial(probe_toolchain, context.version, engine_.gpu))
    command, facts = arguments.build_command(context), _facts(context, tools)
    sources = {role: _stage(context, reader, role, source) for role, source in context.sources.items()}
    checkpoints: dict[str, Step] = sources | _quantized(context, reader, sources, tools)
    steps = {checkpoint(role): step for role, step in checkpoints.items()}
    if tools.builds_engines:
        step = _run(context, tools, "build", "engines", command, checkpoints, engine("target"))
        stored = sum(source.nbytes for source in context.sources.values())
        steps[engine("target")] = replace(step, machine=json.dumps(facts, sort_keys=True), stored_bytes=stored)
    else:
        exported = arguments.exported_roles(context)
        steps |= {arguments.onnx(role): _export(context, role, checkpoints, tools) for role in exported}
    steps |= companion_steps(context, reader)
    document, concurrency = arguments.model_json(context), engine_.max_batch_size
    serving = context.resolved.serving
    steps[REPOSITORY] = repository_step(document, concurrency, streaming=serving.streaming, defaults=serving.defaults)
    steps[""] = DescribeBuild(command, tuple(facts.items()))
    lack = tools.lack()
    runs = [directory for directory, step in steps.items() if isinstance(step, RunEdgeTool)]
    return ArtifactPlan(
        steps,
        tools={"edge_llm": context.version, **({"tensorrt": tools.tensorrt} if tools.tensorrt else {})},
        gpu={"name": engine_.gpu, "sm": find_gpu(engine_.gpu).sm, **({"driver": tools.driver} if tools.driver else {})},
        notes=tuple(_notes(command, tools, sources["target"])),
        devices=tools.devices,
        lacks=dict.fromkeys(runs, lack) if lack else {},
        facts={"toolchain": {key: getattr(tools, key) for key in TOOL_FACTS}, "build_command": list(command)},
    )


def _stage(context: PlanContext, reader: FileReader, role: str, source: Source) -> StageCheckpoint:
    files = reader.read(source.root, source.files)
    if role == "draft":
        return StageCheckpoint(role, files, target_layers=arguments.aux_layers(context))
    path = source.root / "tokenizer_config.json"
    config = read_json(path, MAX_TOKENIZER_BYTES) if path.is_file() else {}
    has_template = config.get("chat_template") or any(file.name == CHAT_TEMPLATE for file in source.tokenizer_files)
    return StageCheckpoint(role, files, plain_template=not has_template)


def rewritten_files(recipe: ResolvedRecipe, role: str) -> tuple[str, ...]:
    """Return the patterns of the files that a build changes or adds: the steps `stage` and `quantize`."""
    wanted = recipe.models[role].quantization
    if (wanted.weights, wanted.kv_cache) != ("none", "none"):
        return ("*",)
    return (CHAT_TEMPLATE,) if role == "target" else ("config.json",)


def _quantized(
    context: PlanContext, reader: FileReader, sources: Mapping[str, Step], tools: EdgeToolchain
) -> dict[str, Step]:
    """Return the quantization steps that the recipe requests for 16-bit sources, by role."""
    found: dict[str, Step] = {}
    for role, _, asked in recipe_models(context):
        wanted, source = asked.quantization, context.sources[role]
        if source_format(source).weights != "none" or (wanted.weights, wanted.kv_cache) == ("none", "none"):
            continue
        reads: dict[str, Step] = {each: sources[each] for each in dict.fromkeys(("target", role))}
        argv = arguments.quantize_arguments(role, wanted, tools.device)
        found[role] = replace(
            _run(context, tools, "quantize", role, argv, reads, checkpoint(role)),
            prompts=(read_calibration(reader, wanted.calibration.prompts),),
            samples=wanted.calibration.samples,
            stored_bytes=source.nbytes // 2,
        )
    return found


def _export(context: PlanContext, role: str, checkpoints: Mapping[str, Step], tools: EdgeToolchain) -> RunEdgeTool:
    method, sm = context.method_name, find_gpu(context.resolved.engine.gpu).sm
    reads = {"draft": checkpoints["draft"]} if (role, method) == ("draft", "eagle3") else checkpoints
    argv = arguments.export_arguments(role, method, sm)
    step = _run(context, tools, "export", role, argv, reads, arguments.onnx(role))
    return replace(step, stored_bytes=context.sources[role].nbytes)


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
    """Return the versions and hardware that engines depend on, as far as they are known on this machine."""
    gpu = find_gpu(context.resolved.engine.gpu)
    return {
        "Edge-LLM": context.version,
        "TensorRT": tools.tensorrt or " or ".join(releases()[context.version].tensorrt_for(gpu.sm)),
        "GPU": f"{gpu.name}, compute capability {gpu.sm // 10}.{gpu.sm % 10}",
        "driver": tools.driver or "the device's driver",
    }


def _notes(command: tuple[str, ...], tools: EdgeToolchain, target: StageCheckpoint) -> Iterator[str]:
    if not tools.builds_engines:
        yield (
            f"this machine cannot build engines ({tools.why_no_engines}): the artifact contains the exported ONNX, and "
            f"reproduce.sh builds the engines on the device: {shlex.join(command)}"
        )
    if target.plain_template:
        yield "the target lacks a chat template, which Edge-LLM requires: its copy gets one that adds nothing to a text"


def repository_step(
    document: Mapping[str, Any], concurrency: int, *, streaming: bool, defaults: str = "trtspec"
) -> EmitModels:
    """Return the step that emits the models; `document` is the content of model.json.

    `concurrency` is the number of parallel requests, `defaults` is `serving.defaults` of the recipe. Edge-LLM batches
    requests itself, so its model receives single requests as they arrive.
    """
    unbatched = ServingSettings(max_batch_size=0, streaming=streaming, defaults=defaults)
    parameters: Parameters = {
        "tokenizer_dir": from_model(TOKENIZER),
        "concurrency": concurrency,
        "draft_len": document["llm"].get("speculative_config", {}).get("num_speculative_tokens", 0),
    }
    documents = {str(MODEL_JSON): json.dumps(document, indent=2) + "\n"}
    models = {ENSEMBLE: TEXT_INPUTS, MODEL: TEXT_INPUTS}
    return EmitModels(
        read_models(SHARED_MODELS, MODELS), unbatched, tuple(models), parameters, documents, MODELS, models
    )


def check_machine(artifact: Path, manifest: Manifest) -> None:
    """Raise DeployError if an artifact's engines are missing or were built for another machine."""
    if not (artifact / engine("target")).is_dir():
        hint = "build the recipe on the device that will serve it; sh reproduce.sh DIRECTORY builds only the engines"
        raise DeployError("the artifact contains only the inputs of engines", where=str(artifact), hint=hint)
    hint = f"pip install 'tensorrt-edgellm[server]=={manifest.recipe.engine.version}' next to trtspec"
    require_package("tensorrt_edgellm", hint)
    wanted = find_gpu(str(manifest.gpu.get("name")))
    if not any(gpu.is_a(wanted) and gpu.driver == manifest.gpu.get("driver") for gpu in detect_gpus()):
        here = ", ".join(f"{gpu.name} with driver {gpu.driver}" for gpu in detect_gpus()) or "no GPU"
        message = f"the engines were built for {wanted.name} with driver {manifest.gpu.get('driver')}, not for {here}"
        raise DeployError(message, where=str(artifact), hint="build the recipe on this machine")


def serving() -> ServingHooks:
    return ServingHooks(
        check_machine=check_machine,
        models=MODELS,
        requirements=lambda version: (f"tensorrt-edgellm[server]=={version}",),
    )
