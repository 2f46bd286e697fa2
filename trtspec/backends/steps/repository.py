# SPDX-License-Identifier: Apache-2.0
"""The step that emits a Triton model repository; each backend brings one of its own kind."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from trtspec.core.hashing import file_sha256
from trtspec.core.paths import model_repository_dir
from trtspec.store.step import Inputs, Progress, Step


@dataclass(frozen=True)
class EmitRepository(Step):
    """Write the models with a recipe's values; `models` is the content of the hand-written ones (`read_models`)."""

    VERSION: ClassVar[int] = 3

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
        """Write the models below `out`, a directory that is ours to fill."""


def read_models(own: Path | None = None) -> tuple[tuple[str, str], ...]:
    """Return (relative path, SHA-256) of every hand-written model file, sorted: the shared ones and a backend's own."""
    return tuple(sorted(found for root in (model_repository_dir(), own) if root for found in _digests(root)))


def _digests(root: Path) -> list[tuple[str, str]]:
    files = (path for path in root.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return [(path.relative_to(root).as_posix(), file_sha256(path)) for path in files]
