# SPDX-License-Identifier: Apache-2.0
"""The step that creates a draft from scratch: random layers and weights of the target."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from trtspec.checkpoints.source_model import load_model
from trtspec.checkpoints.writer import write_config, write_tensors
from trtspec.store.files import Files
from trtspec.store.step import Inputs, Step, StepProgress
from trtspec.training.answer_prompts import AnswerPrompts
from trtspec.training.settings import Sizes
from trtspec.training.texts import TEXTS, TRAIN, read_texts

STORED = {"bfloat16": "BF16", "float16": "F16"}


@dataclass(frozen=True)
class MakeDraft(Step):
    """Write a draft of a method for the model in `target`, as a Hugging Face directory in a supported dialect.

    It drafts `draft_len` consecutive tokens; the training texts determine its draft vocabulary.
    """

    VERSION: ClassVar[int] = 2

    target: Files
    texts: AnswerPrompts
    method: str
    draft_len: int
    sizes: Sizes
    seed: int

    @property
    def name(self) -> str:
        """Return the step's name."""
        return "make-draft"

    def run(self, out: Path, inputs: Inputs, progress: StepProgress) -> None:
        """Create the draft; TrtspecError for sizes that do not fit the target."""
        from trtspec.training.export import make_part
        from trtspec.training.initialization import (
            DraftInitializer,
            find_initializer,
        )  # imports torch, which planning does not need

        texts = [text for text in read_texts(inputs[self.texts] / TEXTS) if text.side == TRAIN]
        with self.target.unchanged():
            model = load_model(self.target.root, "auto")
            origin = DraftInitializer(model, texts, self.draft_len, self.sizes, self.seed)
            blank = find_initializer(self.method, self.sizes).make(origin)
        write_config(out, blank.config)
        dtype = STORED[model.config.dtype]
        write_tensors(out / blank.file, [make_part(name, each, dtype) for name, each in blank.tensors.items()])
        for path in model.source.tokenizer_files if blank.has_tokenizer else ():
            shutil.copyfile(path, out / path.name)
