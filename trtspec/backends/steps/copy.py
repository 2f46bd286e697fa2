# SPDX-License-Identifier: Apache-2.0
"""The step that brings small files along, because an artifact has to stand without its sources."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from trtspec.core.files import in_threads
from trtspec.core.hashing import copy_hashed
from trtspec.store.files import Files
from trtspec.store.step import Inputs, Progress, Step


@dataclass(frozen=True)
class CopyFiles(Step):
    """Copy files by their names; `what` they are ("tokenizer", "prompts") names the step."""

    VERSION: ClassVar[int] = 1

    what: str
    source: Files

    @property
    def name(self) -> str:
        """Return `copy-tokenizer` or the like."""
        return f"copy-{self.what}"

    @property
    def sources(self) -> tuple[Files, ...]:
        """Return all the files that are read."""
        return (self.source,)

    @property
    def output_bytes(self) -> int:
        """Return the bytes of the files."""
        return sum(size for size, _ in self.source.stats)

    @property
    def total_bytes(self) -> int:
        """Return the same: what is written was read."""
        return self.output_bytes

    def run(self, out: Path, inputs: Inputs, progress: Progress) -> Mapping[str, str]:
        """Copy every file, several at once."""

        def copy(path: Path) -> str:
            return copy_hashed(path, out / path.name, progress.advance)

        with self.source.unchanged():
            return dict(
                zip((path.name for path in self.source.paths), in_threads(copy, self.source.paths), strict=True)
            )
