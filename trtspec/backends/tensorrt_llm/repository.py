# SPDX-License-Identifier: Apache-2.0
"""Emit the Triton repository of TensorRT-LLM engines for the C++ backend of TensorRT-LLM 1.0 to 1.2.

    ensemble, tensorrt_llm_bls -> tensorrt_llm, and tensorrt_llm_draft if there is a draft model
    preprocessing, postprocessing: for clients that call tensorrt_llm directly

Python models resolve paths relative to their own directory. The C++ backend resolves them relative to the server's
working directory (NVIDIA/TensorRT-LLM:triton_backend/inflight_batcher_llm/src/model_instance_state.cc@c8c6df08), so
`relocate` writes a copy with absolute paths.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from trtspec.backends.steps.repository import EmitRepository
from trtspec.backends.tensorrt_llm.warmup import samples
from trtspec.core.paths import model_repository_dir
from trtspec.serving.triton.names import BLS, DRAFT, ENSEMBLE, POSTPROCESSING, PREPROCESSING, TARGET
from trtspec.serving.triton.nvidia_compat import NVIDIA
from trtspec.serving.triton.repository_writer import CONFIG, Parameters, ServingSettings, emit_model, write_model
from trtspec.serving.triton.warmup import WarmupSample
from trtspec.store.artifact_paths import TOKENIZER, engine, from_model

MODELS = Path(__file__).with_name("models")
PATHS = ("gpt_model_path", "tokenizer_dir")

# The engine silently clamps larger values (NVIDIA/TensorRT-LLM:cpp/tensorrt_llm/layers/externalDraftTokensLayer.cpp
# @1d263f15, clampTopK; kernels/samplingTopKKernels.h, TOP_K_MAX).
MAX_TOP_K = 1024
DRAFTED_INSIDE = ("medusa", "eagle", "lookahead", "redrafter")  # also the names of decoding_mode
DRAFTED_OUTSIDE = ("draft_target", "ngram")

Choices = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class LookaheadSizes:
    """The sizes of lookahead decoding that the engine was built for; requests may use smaller ones."""

    window: int
    ngram: int
    verification: int


@dataclass(frozen=True)
class EngineServing:
    """The GPUs and the memory limits of one engine.

    `gpu_ids` are the GPUs of its ranks, in order. `participant_ids` are its ranks among all MPI processes, needed only
    for fast logits. `kv_cache_fraction` applies to the memory that is free when the engine is loaded;
    `max_cache_tokens` also limits the cache if engines share a GPU, else it is 0. With `chunked_context` a prompt may
    be longer than a step.
    """

    gpu_ids: tuple[int, ...]
    kv_cache_fraction: float
    participant_ids: tuple[int, ...] = ()
    max_cache_tokens: int = 0
    chunked_context: bool = False


@dataclass(frozen=True, kw_only=True)
class EngineRepositorySettings(ServingSettings):
    """The settings of a repository; lengths are in tokens, the method's `options` are JSON.

    `vocab_size` is the number of the target's logits, including padding. `draft` is None without a draft model,
    `choices` is the tree of medusa or eagle, `lookahead` is None for other methods. `fast_logits` sends draft logits
    from GPU to GPU. `greedy_only` rejects sampled requests. `schedule` contains pairs (number of texts, draft_len) for
    drafting outside the engine.
    """

    method: str
    draft_len: int
    options: str
    max_seq_len: int
    vocab_size: int
    target: EngineServing
    draft: EngineServing | None = None
    choices: Choices = ()
    lookahead: LookaheadSizes | None = None
    fast_logits: bool = False
    greedy_only: bool = False
    schedule: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class EmitEngineRepository(EmitRepository):
    """Write the models for an artifact's engines."""

    settings: EngineRepositorySettings

    def emit(self, out: Path) -> None:
        """Write the models."""
        settings = self.settings
        text: Parameters = {
            "tokenizer_dir": from_model(TOKENIZER),
            "stop_at_all_end_ids": settings.defaults != NVIDIA,
            "max_input_len": settings.max_seq_len,
            "vocab_size": settings.vocab_size,
        }
        emit_model(out, PREPROCESSING, settings, text)
        emit_model(out, POSTPROCESSING, settings, text)
        engines = {TARGET: ("target", settings.target), DRAFT: ("draft", settings.draft)}
        for model, (role, serving) in engines.items():
            if serving:
                parameters = _engine(settings, serving, from_model(engine(role)))
                warmed = _samples(settings, role) if settings.warmup else ()
                emit_model(out, model, settings, parameters, source=MODELS / TARGET, samples=warmed)
        for model in (BLS, ENSEMBLE):  # one model under two names: NVIDIA's, and the one that clients use
            emit_model(out, model, settings, _text(settings), source=model_repository_dir() / BLS)


def relocate(repository: Path, out: Path, artifact: str) -> None:
    """Write a copy of an artifact's repository to `out` with absolute paths.

    `artifact` is the artifact's path for the server, which may differ in a container.
    """
    from trtspec.serving.triton.config import (
        load_config,
        set_parameter,
    )  # imports protobuf, which planning does not need

    for source in sorted(path.parent for path in repository.glob(f"*/{CONFIG}")):
        config = load_config(source / CONFIG)
        seen = posixpath.join(artifact, repository.name, source.name)
        for key in PATHS:
            if key in config.parameters and (path := config.parameters[key].string_value):
                set_parameter(config, key, posixpath.normpath(posixpath.join(seen, path)))
        write_model(out / source.name, source, config)


def _samples(settings: EngineRepositorySettings, role: str) -> tuple[WarmupSample, ...]:
    """Return the warm-up samples of an engine: the target verifies external drafts, without logits."""
    outside = settings.draft_len if role == "target" and settings.method in DRAFTED_OUTSIDE else 0
    return samples(settings.max_batch_size, settings.max_seq_len, settings.draft_len, outside)


def _engine(settings: EngineRepositorySettings, serving: EngineServing, path: str) -> Parameters:
    """Return an engine's parameters; the value None removes a parameter.

    Only a target drafts inside its engine: with a draft model, neither engine has a mode or a tree.
    """
    method, sizes = settings.method, settings.lookahead
    return {
        "gpt_model_path": path,
        "gpu_device_ids": _joined(serving.gpu_ids) or None,
        "participant_ids": _joined(serving.participant_ids) or None,
        "kv_cache_free_gpu_mem_fraction": serving.kv_cache_fraction,
        "max_tokens_in_paged_kv_cache": serving.max_cache_tokens or None,
        "enable_chunked_context": serving.chunked_context,
        "speculative_decoding_fast_logits": settings.fast_logits,
        "exclude_input_in_output": settings.defaults != NVIDIA,
        "decoding_mode": method if method in DRAFTED_INSIDE else None,
        "medusa_choices": _tree(settings.choices) if method == "medusa" else None,
        "eagle_choices": _tree(settings.choices) if method == "eagle" else None,
        "lookahead_window_size": sizes.window if sizes else None,
        "lookahead_ngram_size": sizes.ngram if sizes else None,
        "lookahead_verification_set_size": sizes.verification if sizes else None,
    }


def _text(settings: EngineRepositorySettings) -> Parameters:
    """Return the parameters of the text model; engines that draft inside are plain engines for it."""
    outside, sizes = settings.method in DRAFTED_OUTSIDE, settings.lookahead
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
        "lookahead_window_size": sizes.window if sizes else "",
        "lookahead_ngram_size": sizes.ngram if sizes else "",
        "lookahead_verification_set_size": sizes.verification if sizes else "",
        "tokenizer_dir": from_model(TOKENIZER),
    }


def _joined(numbers: Iterable[int]) -> str:
    return ",".join(map(str, numbers))


def _tree(choices: Choices) -> str:
    """Return the paths of a tree in the format of the C++ backend: {0},{0,1}."""
    return ",".join(f"{{{_joined(choice)}}}" for choice in choices)
