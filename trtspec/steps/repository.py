# SPDX-License-Identifier: Apache-2.0
"""The step that emits the Triton model repository."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from trtspec.files import file_sha256
from trtspec.graph.step import Inputs, Progress, Step
from trtspec.paths import model_repository_dir
from trtspec.triton.repository import RepositorySettings, emit_repository


@dataclass(frozen=True)
class EmitRepository(Step):
    """Write the models with this recipe's values; `models` is the content of the hand-written ones."""

    VERSION: ClassVar[int] = 1

    settings: RepositorySettings
    models: tuple[tuple[str, str], ...]

    @property
    def name(self) -> str:
        """Return the step's name."""
        return "emit-repository"

    def run(self, out: Path, inputs: Inputs, progress: Progress) -> None:
        """Emit."""
        emit_repository(out, self.settings)


def read_models() -> tuple[tuple[str, str], ...]:
    """Return (relative path, SHA-256) of every hand-written model file, sorted."""
    root = model_repository_dir()
    files = (path for path in root.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return tuple(sorted((path.relative_to(root).as_posix(), file_sha256(path)) for path in files))
