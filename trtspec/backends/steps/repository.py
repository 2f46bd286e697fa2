# SPDX-License-Identifier: Apache-2.0
"""The base of the steps that emit a Triton model repository; each backend has its own."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from trtspec.core.hashing import file_sha256
from trtspec.core.paths import model_repository_dir
from trtspec.store.step import Inputs, Step, StepProgress


@dataclass(frozen=True)
class EmitRepository(Step):
    """Write the models with a recipe's values; `models` are the hand-written ones and their digests (`read_models`)."""

    VERSION: ClassVar[int] = 3

    models: tuple[tuple[str, str], ...]

    @property
    def name(self) -> str:
        """Return the step's name."""
        return "emit-repository"

    def run(self, out: Path, inputs: Inputs, progress: StepProgress) -> None:
        """Write the repository to `out`."""
        self.emit(out)

    @abstractmethod
    def emit(self, out: Path) -> None:
        """Write the models below `out`, an empty directory."""


def read_models(own: Path | None = None) -> tuple[tuple[str, str], ...]:
    """Return (relative path, SHA-256) of every hand-written model file, shared or the backend's `own`, sorted."""
    return tuple(sorted(found for root in (model_repository_dir(), own) if root for found in _digests(root)))


def _digests(root: Path) -> list[tuple[str, str]]:
    files = (path for path in root.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return [(path.relative_to(root).as_posix(), file_sha256(path)) for path in files]
