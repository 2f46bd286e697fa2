# SPDX-License-Identifier: Apache-2.0
"""The step that takes a draft over which another project's trainer has written."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from trtspec.bench.overlap import RECORD
from trtspec.core.errors import TrtspecError
from trtspec.store.files import Files
from trtspec.store.step import Inputs, Progress, Step
from trtspec.training.answer_prompts import AnswerPrompts
from trtspec.training.external.rows import held_out_digest
from trtspec.training.texts import TEXTS, read_texts


@dataclass(frozen=True)
class TakeDraft(Step):
    """Write the draft in `source` in the dialect of the draft before; `target` is the target's own directory.

    `held_out` is the digest of the prompts that its rows were kept free of, `trainer` who trained it.
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
        """Return what people call it."""
        return "take-draft"

    def run(self, out: Path, inputs: Inputs, progress: Progress) -> None:
        """Convert; raises TrtspecError for other held-out prompts, and for a draft that does not add up."""
        from trtspec.methods.draft_formats.convert import convert_draft

        if held_out_digest(read_texts(inputs[self.texts] / TEXTS)) != self.held_out:
            message = "other prompts are held out now than when its rows were written, so it may have learned them"
            hint = "give the same --prompts, --keep, --held-out, --seed and --max-tokens again"
            raise TrtspecError(message, where=str(self.source.root), hint=hint)
        with self.source.unchanged(), self.target.unchanged():
            converted = convert_draft(self.source.root, self.dialect, out / "draft", str(self.target.root))
        for path in (out / "draft").iterdir():
            path.rename(out / path.name)
        (out / "draft").rmdir()
        record = {"trainer": self.trainer, "dialect": converted.draft.dialect}
        (out / RECORD).write_text(json.dumps(record) + "\n")
