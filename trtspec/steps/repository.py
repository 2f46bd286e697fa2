# SPDX-License-Identifier: Apache-2.0
"""The steps that emit a Triton model repository, one a kind of engine."""

from __future__ import annotations

import json
from abc import abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from trtspec.files import file_sha256
from trtspec.graph.step import Inputs, Progress, Step
from trtspec.paths import model_repository_dir
from trtspec.backends.tensorrt_llm.repository import EngineRepositorySettings, emit_engine_repository
from trtspec.backends.llmapi.repository import LlmApiRepositorySettings, emit_llmapi_repository
from trtspec.triton.emission import RepositorySettings, emit_repository
from trtspec.backends.vllm.repository import VllmRepositorySettings, emit_vllm_repository


@dataclass(frozen=True)
class _EmitRepository(Step):
    """Write the models with a recipe's values; `models` is the content of the hand-written ones."""

    VERSION: ClassVar[int] = 2

    models: tuple[tuple[str, str], ...]

    @property
    def name(self) -> str:
        """Return the step's name."""
        return "emit-repository"

    def run(self, out: Path, inputs: Inputs, progress: Progress) -> None:
        """Emit."""
        self.emit(out)

    @abstractmethod
    def emit(self, out: Path) -> None:
        """Write the models below `out`."""


@dataclass(frozen=True)
class EmitRepository(_EmitRepository):
    """The repository of the embedded engine."""

    settings: RepositorySettings

    def emit(self, out: Path) -> None:
        """Write the models."""
        emit_repository(out, self.settings)


@dataclass(frozen=True)
class EmitEngineRepository(_EmitRepository):
    """The repository of TensorRT-LLM engines."""

    settings: EngineRepositorySettings

    def emit(self, out: Path) -> None:
        """Write the models."""
        emit_engine_repository(out, self.settings)


@dataclass(frozen=True)
class EmitLlmApiRepository(_EmitRepository):
    """The repository of the LLM API; `model_yaml` is its arguments, as JSON."""

    settings: LlmApiRepositorySettings
    model_yaml: str

    def emit(self, out: Path) -> None:
        """Write the models."""
        emit_llmapi_repository(out, self.settings, json.loads(self.model_yaml))


@dataclass(frozen=True)
class EmitVllmRepository(_EmitRepository):
    """The repository of vLLM; `model_json` is its arguments, as JSON."""

    settings: VllmRepositorySettings
    model_json: str

    def emit(self, out: Path) -> None:
        """Write the models."""
        emit_vllm_repository(out, self.settings, json.loads(self.model_json))


def read_models() -> tuple[tuple[str, str], ...]:
    """Return (relative path, SHA-256) of every hand-written model file, sorted."""
    root = model_repository_dir()
    files = (path for path in root.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return tuple(sorted((path.relative_to(root).as_posix(), file_sha256(path)) for path in files))
