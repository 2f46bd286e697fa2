# SPDX-License-Identifier: Apache-2.0
"""The step that converts a draft model with another vocabulary than its target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import ClassVar

from trtspec.backends.steps.convert import ConvertCheckpoint
from trtspec.checkpoints.source_model import load_model
from trtspec.checkpoints.tokenizer import Tokenizer
from trtspec.checkpoints.translation import VocabMapping
from trtspec.store.files import Files
from trtspec.store.step import Inputs, StepProgress


@dataclass(frozen=True, kw_only=True)
class ConvertOtherVocabulary(ConvertCheckpoint):
    """Convert a draft model and write the mapping of its tokens to the target's `target_size` vocabulary entries.

    `tokenizers` are the target's and the draft's files.
    """

    VERSION: ClassVar[int] = ConvertCheckpoint.VERSION
    RESUMABLE: ClassVar[bool] = True

    tokenizers: tuple[Files, Files]
    target_size: int

    @classmethod
    def of(cls, conversion: ConvertCheckpoint, tokenizers: tuple[Files, Files], target_size: int) -> ConvertCheckpoint:
        """Return a copy of a conversion that also writes the mapping."""
        same = {field.name: getattr(conversion, field.name) for field in fields(conversion)}
        return cls(**same, tokenizers=tokenizers, target_size=target_size)

    @property
    def sources(self) -> tuple[Files, ...]:
        """Return all files that are read."""
        return (*super().sources, *self.tokenizers)

    def run(self, out: Path, inputs: Inputs, progress: StepProgress) -> Mapping[str, str]:
        """Convert the model and write the mapping. Raise CheckpointError if the sources are inconsistent."""
        digests = super().run(out, inputs, progress)
        target, draft = (Tokenizer(files.root) for files in self.tokenizers)
        draft_size = load_model(self.source.root, self.dtype).config.vocab_size
        VocabMapping.between(target, draft, self.target_size, draft_size).write(out)
        return digests
