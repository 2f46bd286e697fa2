# SPDX-License-Identifier: Apache-2.0
"""The artifact of TensorRT-LLM engines: converted checkpoints, their engines, and a Triton repository for both.

    ensemble, tensorrt_llm_bls -> tensorrt_llm, and tensorrt_llm_draft if there is a draft model
    preprocessing, postprocessing: for clients that call tensorrt_llm directly

The repository is for the C++ backend of TensorRT-LLM 1.0 to 1.2. Python models resolve paths relative to their own
directory. The C++ backend resolves them relative to the server's working directory
(NVIDIA/TensorRT-LLM:triton_backend/inflight_batcher_llm/src/model_instance_state.cc@c8c6df08), so `relocate` writes a
copy with absolute paths.

An engine requires the GPU, the driver and the versions that it was built with. Mismatches would fail during loading or
silently select other kernels, so they are rejected before a server starts. The server consists of one process, or of
one process per rank.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from trtspec.backends.base import ArtifactPlan
from trtspec.backends.common.build_tools import installed_versions
from trtspec.backends.common.steps import (
    EmitRepository,
    companion_steps,
    conversion_steps,
    padding_notes,
    read_models,
    serving_settings,
)
from trtspec.backends.common.trtllm_versions import container_images, is_release
from trtspec.backends.context import PlanContext
from trtspec.backends.serving import Launch, ServingHooks, relocate
from trtspec.backends.tensorrt_llm.build import BuildEngine, DescribeEngines
from trtspec.backends.tensorrt_llm.placement import (
    ENVIRONMENT,
    LAUNCH,
    EnginePlacement,
    PlacedModel,
    no_pools,
    plan_placement,
)
from trtspec.backends.tensorrt_llm.specs import build_arguments, engine_specs, is_greedy_only
from trtspec.backends.tensorrt_llm.toolchain import BUILDER, PACKAGE, probe_toolchain
from trtspec.core.errors import DeployError
from trtspec.core.files import read_bounded
from trtspec.core.gpus import Gpu, detect_gpus, find_gpu
from trtspec.core.paths import model_repository_dir
from trtspec.methods.lookahead import LookaheadOptions
from trtspec.serving.triton.names import BLS, DRAFT, ENGINE_MODELS, ENSEMBLE, POSTPROCESSING, PREPROCESSING, TARGET
from trtspec.serving.triton.nvidia_compat import NVIDIA
from trtspec.serving.triton.repository_writer import Parameters, ServingSettings, WarmupSample, emit_model
from trtspec.store.artifact import Manifest
from trtspec.store.artifact_paths import REPOSITORY, TOKENIZER, checkpoint, engine, from_model
from trtspec.store.files import FileReader
from trtspec.store.step import Step

PROMPT_LEN = 16
PERIOD = 4  # a repetitive prompt, for which lookahead can draft
STEPS = 2
TOKEN = 1  # the first token id: 0 is often an end id
MODELS = Path(__file__).with_name("models")
# The engine silently clamps larger values (NVIDIA/TensorRT-LLM:cpp/tensorrt_llm/layers/externalDraftTokensLayer.cpp
# @1d263f15, clampTopK; kernels/samplingTopKKernels.h, TOP_K_MAX).
MAX_TOP_K = 1024
DRAFTED_INSIDE = ("medusa", "eagle", "lookahead", "redrafter")  # also the names of decoding_mode
DRAFTED_OUTSIDE = ("draft_target", "ngram")
LOOKAHEAD_SIZES = ("lookahead_window_size", "lookahead_ngram_size", "lookahead_verification_set_size")
Choices = tuple[tuple[int, ...], ...]
MAX_LAUNCH_BYTES = 1 << 20
TOOL_FACTS = ("kind", "image", "reference", "tensorrt_llm", "tensorrt", "gpu", "sm", "driver", "missing")
MOST_RANKS = 512


@dataclass(frozen=True, kw_only=True)
class EngineRepositorySettings(ServingSettings):
    """The settings of a Triton repository for engines; lengths are in tokens.

    Attributes:
        options: the method's options, as JSON.
        vocab_size: the width of the target's logits, including padding.
        lookahead: the sizes of the engine, which are upper limits for requests; empty for other methods.
        fast_logits: true if draft logits are sent from GPU to GPU.
        schedule: pairs (number of requests, draft_len) for drafting outside the engine.
    """

    method: str
    draft_len: int
    options: str
    max_seq_len: int
    vocab_size: int
    target: PlacedModel
    draft: PlacedModel | None = None
    choices: Choices = ()
    lookahead: tuple[int, ...] = ()
    fast_logits: bool = False
    greedy_only: bool = False
    schedule: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class EmitEngineRepository(EmitRepository):
    """Step that writes the models for an artifact's engines."""

    settings: EngineRepositorySettings

    def emit(self, out: Path) -> None:
        settings = self.settings
        text: Parameters = {
            "tokenizer_dir": from_model(TOKENIZER),
            "stop_at_all_end_ids": settings.defaults != NVIDIA,
            "max_input_len": settings.max_seq_len,
            "vocab_size": settings.vocab_size,
        }
        emit_model(out, PREPROCESSING, settings, text)
        emit_model(out, POSTPROCESSING, settings, text)
        for role, placed in (("target", settings.target), ("draft", settings.draft)):
            if placed:
                parameters = _engine(settings, placed, from_model(engine(role)))
                warmed = _samples(settings, role) if settings.warmup else ()
                emit_model(out, placed.name, settings, parameters, source=MODELS / TARGET, samples=warmed)
        for model in (BLS, ENSEMBLE):  # one model under two names: NVIDIA's, and the one that clients use
            emit_model(out, model, settings, _text(settings), source=model_repository_dir() / BLS)


def _samples(settings: EngineRepositorySettings, role: str) -> tuple[WarmupSample, ...]:
    """Return an engine's warm-up samples: texts, and also drafts for the target of an external drafter."""
    new_tokens = STEPS * (settings.draft_len + 1)
    prompt_len = max(1, min(PROMPT_LEN, settings.max_seq_len - new_tokens))
    prompt = [TOKEN + place % PERIOD for place in range(prompt_len)]
    text = {"input_ids": prompt, "input_lengths": [prompt_len], "request_output_len": [new_tokens]}
    kinds = {"texts": text}
    if role == "target" and settings.method in DRAFTED_OUTSIDE and settings.draft_len:
        draft = [TOKEN + place % PERIOD for place in range(settings.draft_len)]
        kinds["drafts"] = text | {"draft_input_ids": draft, "request_output_len": [settings.draft_len + 1]}
    sizes = dict.fromkeys((1, settings.max_batch_size))
    return tuple(WarmupSample(f"{size}-{kind}", size, inputs) for kind, inputs in kinds.items() for size in sizes)


def _engine(settings: EngineRepositorySettings, placed: PlacedModel, path: str) -> Parameters:
    """Return the parameters of an engine's model; the value None removes a parameter.

    A decoding mode and a tree are set only for a target that drafts inside its engine.
    """
    method = settings.method
    return {
        "gpt_model_path": path,
        "gpu_device_ids": _joined(placed.gpu_device_ids) or None,
        "participant_ids": _joined(placed.participant_ids) or None,
        "kv_cache_free_gpu_mem_fraction": placed.kv_cache_fraction,
        "max_tokens_in_paged_kv_cache": placed.max_cache_tokens or None,
        "enable_chunked_context": placed.chunked_context,
        "speculative_decoding_fast_logits": settings.fast_logits,
        "exclude_input_in_output": settings.defaults != NVIDIA,
        "decoding_mode": method if method in DRAFTED_INSIDE else None,
        "medusa_choices": _tree(settings.choices) if method == "medusa" else None,
        "eagle_choices": _tree(settings.choices) if method == "eagle" else None,
        **dict(zip(LOOKAHEAD_SIZES, settings.lookahead or (None,) * 3, strict=True)),
    }


def _text(settings: EngineRepositorySettings) -> Parameters:
    """Return the parameters of the text model, which treats engines that draft inside as plain engines."""
    outside = settings.method in DRAFTED_OUTSIDE
    return {
        "tensorrt_llm_model_name": TARGET,
        "tensorrt_llm_draft_model_name": DRAFT if settings.draft else "",
        "draft_method": settings.method if outside else "none",
        "draft_len": settings.draft_len if outside else 0,
        "draft_len_schedule": json.dumps(settings.schedule) if settings.schedule else "",
        "speculation_options": settings.options if outside else "{}",
        "speculative_decoding_fast_logits": settings.fast_logits,
        "vocab_size": settings.vocab_size,
        "max_seq_len": settings.max_seq_len,
        "greedy_only": settings.greedy_only,
        "max_top_k": MAX_TOP_K,
        **dict(zip(LOOKAHEAD_SIZES, settings.lookahead or ("",) * 3, strict=True)),
        "tokenizer_dir": from_model(TOKENIZER),
    }


def _joined(numbers: Iterable[int]) -> str:
    return ",".join(map(str, numbers))


def _tree(choices: Choices) -> str:
    """Return a tree in the format of the C++ backend, such as {0},{0,1}."""
    return ",".join(f"{{{_joined(choice)}}}" for choice in choices)


def plan_artifact(context: PlanContext, reader: FileReader) -> ArtifactPlan:
    """Return the steps of an artifact; raise TrtspecError if the installed TensorRT-LLM is not the recipe's version."""
    engine_, build = context.resolved.engine, context.resolved.engine.build
    probe = partial(probe_toolchain, build.image, engine_.version, engine_.gpu, online=reader.for_build)
    toolchain = context.builder_tools(probe)
    checkpoints, cache = conversion_steps(context, reader), Path(build.timing_cache)
    timing_cache = (reader.read(cache.parent, [cache]),) if build.timing_cache else ()
    arguments = {spec.role: tuple(build_arguments(spec.role, context)) for spec in engine_specs(context)}
    engines = tuple(
        BuildEngine(role, checkpoints[role], words, toolchain, timing_cache, build.timeout_s)
        for role, words in arguments.items()
    )
    placement = plan_placement(context)
    steps: dict[str, Step] = {checkpoint(role): step for role, step in checkpoints.items()}
    steps |= {engine(built.role): built for built in engines}
    steps |= companion_steps(context, reader)
    steps[REPOSITORY] = EmitEngineRepository(read_models(MODELS), _settings(context, placement))
    steps[""] = DescribeEngines(engines, json.dumps(asdict(placement), indent=2))
    notes, lacks = padding_notes(context), {}
    if lack := toolchain.lack():
        hint = toolchain.hint.partition("\n")[0]  # the rest is a program's output
        notes = (*notes, f"this machine cannot build the engines ({toolchain.missing}); their keys may change: {hint}")
        lacks = {engine(built.role): lack for built in engines}
    elif note := toolchain.image_note():
        notes = (*notes, note)
    image = {"image": toolchain.image_record} if toolchain.image else {}
    return ArtifactPlan(
        steps,
        tools={"tensorrt_llm": toolchain.tensorrt_llm, "tensorrt": toolchain.tensorrt, **image},
        gpu={"name": toolchain.gpu, "sm": toolchain.sm, "driver": toolchain.driver},
        notes=notes,
        devices=toolchain.devices,
        lacks=lacks,
        keys_are_final=toolchain.is_final,
        facts={"placement": asdict(placement), "toolchain": {key: getattr(toolchain, key) for key in TOOL_FACTS}},
    )


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


def check_machine(artifact: Path, manifest: Manifest) -> None:
    """Raise DeployError if this machine differs from the one that the artifact's engines were built on."""
    built = {**manifest.tools, **manifest.gpu}
    here = _machine(find_gpu(str(built.get("name"))))
    odd = []
    for key, value in here.items():
        recorded = built.get(key)
        # candidates match the image's release
        if not is_release(value, str(recorded)) if key == "tensorrt_llm" else recorded != value:
            odd.append(f"{key} {recorded} when built, {value} here")
    if odd:
        message = f"the engines were built for another machine: {'; '.join(odd)}"
        hint = "build the recipe on this machine; converted checkpoints are reused"
        raise DeployError(message, where=str(artifact), hint=hint)


def read_launch(artifact: Path) -> Launch:
    path = artifact / LAUNCH
    try:
        return _parse_launch(json.loads(read_bounded(path, MAX_LAUNCH_BYTES)))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DeployError(f"cannot be read: {error}", where=str(path), hint="build it again") from None


def _parse_launch(document: dict[str, Any]) -> Launch:
    """Return the launch from an untrusted document, of which only numbers and known names are used.

    Raise ValueError, KeyError or TypeError for an invalid document.
    """
    world_size, models = document["world_size"], [model["name"] for model in document["models"]]
    if type(world_size) is not int or not 1 <= world_size <= MOST_RANKS:
        raise ValueError(f"world_size {world_size!r}")
    if not models or not set(models) <= set(ENGINE_MODELS.values()):
        raise ValueError(f"models {models!r}")
    environment = {key: str(document["environment"][key]) for key in ENVIRONMENT if key in document["environment"]}
    if any(value not in ("0", "1") for value in environment.values()):
        raise ValueError(f"environment {environment!r}")
    gpu_ids = [int(gpu_id) for model in document["models"] for gpu_id in model["gpu_device_ids"]]
    if not all(0 <= gpu_id < MOST_RANKS for gpu_id in gpu_ids):
        raise ValueError(f"gpu_device_ids {gpu_ids!r}")
    spawns = environment.get(ENVIRONMENT[1]) == "1"
    return Launch(world_size, tuple(models), environment, no_pools(gpu_ids) if spawns else ())


def _machine(wanted: Gpu) -> dict[str, Any]:
    """Return the facts about this machine that decide whether an engine can be loaded, by the manifest's keys."""
    builder = shutil.which(BUILDER)
    if builder is None:
        hint = "deploy in the container with the TensorRT-LLM version that built the engines"
        raise DeployError(f"{BUILDER} is not on PATH, so TensorRT-LLM's version is unknown", hint=hint)
    tensorrt_llm, tensorrt = installed_versions(Path(builder), PACKAGE)
    gpus = detect_gpus()
    fitting = [gpu for gpu in gpus if gpu.is_a(wanted)]
    gpu = next(iter([*fitting, *gpus]), None)
    return {
        "tensorrt_llm": tensorrt_llm,
        "tensorrt": tensorrt,
        "name": wanted.name if fitting else gpu.name if gpu else "no GPU",
        "sm": gpu.sm if gpu else 0,
        "driver": gpu.driver if gpu else "",
    }


def serving() -> ServingHooks:
    return ServingHooks(
        triton_backend="tensorrtllm",
        check_machine=check_machine,
        stage=relocate,
        launch=read_launch,
        models=MODELS,
        images=container_images,
        # triton-inference-server/tensorrtllm_backend:README.md@0b9d7d5a
        kv_usage='nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction"}',
    )
