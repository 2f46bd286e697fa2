# SPDX-License-Identifier: Apache-2.0
"""The step that copies small files, so that an artifact does not depend on its sources."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from trtspec.core.files import map_in_threads
from trtspec.core.hashing import copy_hashed
from trtspec.store.files import Files
from trtspec.store.step import Inputs, Step, StepProgress


@dataclass(frozen=True)
class CopyFiles(Step):
    """Copy files under their names; `what` ("tokenizer", "prompts") is part of the step's name."""

    VERSION: ClassVar[int] = 1

    what: str
    source: Files

    @property
    def name(self) -> str:
        """Return the step's name, such as `copy-tokenizer`."""
        return f"copy-{self.what}"

    @property
    def sources(self) -> tuple[Files, ...]:
        """Return all files that are read."""
        return (self.source,)

    @property
    def output_bytes(self) -> int:
        """Return the total size of the files."""
        return sum(size for size, _ in self.source.stats)

    @property
    def total_bytes(self) -> int:
        """Return the total size of the files, all of which are read."""
        return self.output_bytes

    def run(self, out: Path, inputs: Inputs, progress: StepProgress) -> Mapping[str, str]:
        """Copy the files in parallel and return their digests by name."""

        def copy(path: Path) -> str:
            return copy_hashed(path, out / path.name, progress.advance)

        with self.source.unchanged():
            return dict(
                zip((path.name for path in self.source.paths), map_in_threads(copy, self.source.paths), strict=True)
            )
