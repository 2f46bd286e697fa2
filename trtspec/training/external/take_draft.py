# SPDX-License-Identifier: Apache-2.0
"""The step that imports a draft written by an external trainer."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from trtspec.bench.overlap import RECORD
from trtspec.core.errors import TrtspecError
from trtspec.store.files import Files
from trtspec.store.step import Inputs, Step, StepProgress
from trtspec.training.answer_prompts import AnswerPrompts
from trtspec.training.external.rows import held_out_digest
from trtspec.training.texts import TEXTS, read_texts


@dataclass(frozen=True)
class TakeDraft(Step):
    """Write the draft in `source` in the dialect of the previous draft; `target` is the target's directory.

    `held_out` is the digest of the prompts excluded from its rows, `trainer` the name of the trainer.
    """

    VERSION: ClassVar[int] = 1

    source: Files
    target: Files
    texts: AnswerPrompts
    dialect: str
    held_out: str
    trainer: str

    @property
    def name(self) -> str:
        """Return the step's name."""
        return "take-draft"

    def run(self, out: Path, inputs: Inputs, progress: StepProgress) -> None:
        """Convert; TrtspecError for different held-out prompts, and for an inconsistent draft."""
        from trtspec.methods.draft_formats.convert import convert_draft

        if held_out_digest(read_texts(inputs[self.texts] / TEXTS)) != self.held_out:
            message = "the held-out prompts changed since its rows were written, so it may have been trained on them"
            hint = "use the same --prompts, --regression-prompts, --held-out, --seed and --max-tokens as before"
            raise TrtspecError(message, where=str(self.source.root), hint=hint)
        with self.source.unchanged(), self.target.unchanged():
            converted = convert_draft(self.source.root, self.dialect, out / "draft", str(self.target.root))
        for path in (out / "draft").iterdir():
            path.rename(out / path.name)
        (out / "draft").rmdir()
        record = {"trainer": self.trainer, "dialect": converted.draft.dialect}
        (out / RECORD).write_text(json.dumps(record) + "\n")
