# SPDX-License-Identifier: Apache-2.0
"""The Triton repository of TensorRT-LLM engines for the C++ backend of TensorRT-LLM 1.0 to 1.2, and its launch.

    ensemble, tensorrt_llm_bls -> tensorrt_llm, and tensorrt_llm_draft if there is a draft model
    preprocessing, postprocessing: for clients that call tensorrt_llm directly

Python models resolve paths relative to their own directory. The C++ backend resolves them relative to the server's
working directory (NVIDIA/TensorRT-LLM:triton_backend/inflight_batcher_llm/src/model_instance_state.cc@c8c6df08), so
`relocate` writes a copy with absolute paths.

An engine requires the GPU, the driver and the versions that built it. Mismatches that would fail during loading, or
silently use other kernels, are rejected before a server starts. There is one process, or one per rank.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtspec.backends.common.build_tools import installed_versions
from trtspec.backends.common.trtllm_versions import container_images, is_release
from trtspec.backends.serving import Launch, ServingHooks, with_absolute_paths
from trtspec.backends.steps.files import EmitRepository
from trtspec.backends.tensorrt_llm.placement import ENVIRONMENT, LAUNCH, PlacedModel, no_pools
from trtspec.backends.tensorrt_llm.toolchain import BUILDER, PACKAGE
from trtspec.core.errors import DeployError
from trtspec.core.files import read_bounded
from trtspec.core.gpus import Gpu, detect_gpus, find_gpu
from trtspec.core.paths import model_repository_dir
from trtspec.serving.triton.names import BLS, DRAFT, ENGINE_MODELS, ENSEMBLE, POSTPROCESSING, PREPROCESSING, TARGET
from trtspec.serving.triton.nvidia_compat import NVIDIA
from trtspec.serving.triton.repository_writer import (
    CONFIG,
    Parameters,
    ServingSettings,
    WarmupSample,
    emit_model,
    write_model,
)
from trtspec.store.artifact import Manifest
from trtspec.store.artifact_paths import TOKENIZER, engine, from_model

PROMPT_LEN = 16
PERIOD = 4  # a repetitive prompt, for which lookahead can draft
STEPS = 2
TOKEN = 1  # the first token id: 0 is often an end id
MODELS = Path(__file__).with_name("models")
PATHS = ("gpt_model_path", "tokenizer_dir")
# The engine silently clamps larger values (NVIDIA/TensorRT-LLM:cpp/tensorrt_llm/layers/externalDraftTokensLayer.cpp
# @1d263f15, clampTopK; kernels/samplingTopKKernels.h, TOP_K_MAX).
MAX_TOP_K = 1024
DRAFTED_INSIDE = ("medusa", "eagle", "lookahead", "redrafter")  # also the names of decoding_mode
DRAFTED_OUTSIDE = ("draft_target", "ngram")
LOOKAHEAD_SIZES = ("lookahead_window_size", "lookahead_ngram_size", "lookahead_verification_set_size")
Choices = tuple[tuple[int, ...], ...]
MAX_LAUNCH_BYTES = 1 << 20
MOST_RANKS = 512


def samples(max_batch_size: int, max_seq_len: int, draft_len: int, drafted_outside: int) -> tuple[WarmupSample, ...]:
    """Return an engine's samples; lengths are in tokens, `drafted_outside` is the number of external draft tokens."""
    prompt = [TOKEN + place % PERIOD for place in range(max(1, min(PROMPT_LEN, max_seq_len - STEPS * (draft_len + 1))))]
    text = {"input_ids": prompt, "input_lengths": [len(prompt)], "request_output_len": [STEPS * (draft_len + 1)]}
    kinds = {"texts": text}
    if drafted_outside:
        draft = [TOKEN + place % PERIOD for place in range(drafted_outside)]
        kinds["drafts"] = text | {"draft_input_ids": draft, "request_output_len": [drafted_outside + 1]}
    sizes = dict.fromkeys((1, max_batch_size))
    return tuple(WarmupSample(f"{size}-{kind}", size, inputs) for kind, inputs in kinds.items() for size in sizes)


@dataclass(frozen=True, kw_only=True)
class EngineRepositorySettings(ServingSettings):
    """The settings of a repository; lengths are in tokens, the method's `options` are JSON.

    `vocab_size` is the number of the target's logits, including padding. `draft` is None without a draft model,
    `choices` is the tree of medusa or eagle. `lookahead` are the sizes that the engine was built for, of which requests
    may use smaller ones; empty for other methods. `fast_logits` sends draft logits from GPU to GPU. `greedy_only`
    rejects sampled requests. `schedule` contains pairs (number of texts, draft_len) for drafting outside the engine.
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
    """Write the models for an artifact's engines."""

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


def relocate(repository: Path, out: Path, artifact: str) -> None:
    """Write a copy of an artifact's repository to `out` with absolute paths.

    `artifact` is the artifact's path for the server, which may differ in a container.
    """
    from trtspec.serving.triton.config import load_config, set_parameter  # planning needs no protobuf

    for source in sorted(path.parent for path in repository.glob(f"*/{CONFIG}")):
        config = load_config(source / CONFIG)
        for key in PATHS:
            if key in config.parameters:
                path = config.parameters[key].string_value
                set_parameter(config, key, with_absolute_paths(path, source.name, artifact))
        write_model(out / source.name, source, config)


def _samples(settings: EngineRepositorySettings, role: str) -> tuple[WarmupSample, ...]:
    """Return the warm-up samples of an engine: the target verifies external drafts, without logits."""
    outside = settings.draft_len if role == "target" and settings.method in DRAFTED_OUTSIDE else 0
    return samples(settings.max_batch_size, settings.max_seq_len, settings.draft_len, outside)


def _engine(settings: EngineRepositorySettings, placed: PlacedModel, path: str) -> Parameters:
    """Return an engine's parameters; the value None removes a parameter.

    Only a target drafts inside its engine: with a draft model, neither engine has a mode or a tree.
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
    """Return the parameters of the text model; engines that draft inside are plain engines for it."""
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
    """Return the paths of a tree in the format of the C++ backend: {0},{0,1}."""
    return ",".join(f"{{{_joined(choice)}}}" for choice in choices)


def check_machine(artifact: Path, manifest: Manifest) -> None:
    """Raise DeployError if this machine differs from the one that the artifact's engines were built for."""
    built = {**manifest.tools, **manifest.gpu}
    here = _machine(find_gpu(str(built.get("name"))))
    odd = [
        f"{key} {built.get(key)} when built, {value} here" for key, value in here.items() if _differs(key, built, value)
    ]
    if odd:
        hint = "build the recipe on this machine; converted checkpoints are reused"
        raise DeployError(
            f"the engines were built for another machine: {'; '.join(odd)}", where=str(artifact), hint=hint
        )


def _differs(key: str, built: dict[str, Any], value: object) -> bool:
    """Return whether a fact of this machine differs from the build's; candidates match the image's release."""
    recorded = built.get(key)
    return not is_release(value, str(recorded)) if key == "tensorrt_llm" else recorded != value


def read_launch(artifact: Path) -> Launch:
    path = artifact / LAUNCH
    try:
        return _parse_launch(json.loads(read_bounded(path, MAX_LAUNCH_BYTES)))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DeployError(f"cannot be read: {error}", where=str(path), hint="build it again") from None


def _parse_launch(document: dict[str, Any]) -> Launch:
    """Read only numbers and expected names from the document, since it is untrusted: nothing in it is executed."""
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
    """Return this machine's facts that decide whether an engine can be loaded, under the manifest's keys."""
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
