# SPDX-License-Identifier: Apache-2.0
"""The step that leaves a net fewer tokens to draft: the most frequent ones of what its target answers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from trtspec.checkpoints.source_model import load_model
from trtspec.checkpoints.writer import write_config, write_tensors
from trtspec.core.errors import CheckpointError
from trtspec.store.files import Files
from trtspec.store.step import Inputs, Progress, Step
from trtspec.training.answer_prompts import AnswerPrompts
from trtspec.training.texts import HELD_OUT, TEXTS, read_texts

METHODS = ("dflash", "dspark", "eagle3", "p_eagle")


@dataclass(frozen=True)
class ReduceDraft(Step):
    """Write the net in `source` with `count` of the tokens that it drafts; `target` is the model that it drafts for.

    Texts that were held out have no say in which.
    """

    VERSION: ClassVar[int] = 1

    target: Files
    source: Files
    texts: AnswerPrompts
    method: str
    count: int

    @property
    def name(self) -> str:
        """Return what people call it."""
        return "reduce-draft"

    def run(self, out: Path, inputs: Inputs, progress: Progress) -> None:
        """Write it; raises CheckpointError for a net that drafts no more tokens than that."""
        from trtspec.training.vocab_pruning.reduced_net import ReducedNet  # torch, which planning does without
        from trtspec.training.vocab_pruning.vocabulary import most_frequent

        texts = [text for text in read_texts(inputs[self.texts] / TEXTS) if text.side != HELD_OUT]
        with self.source.unchanged(), self.target.unchanged():
            net = ReducedNet(self.source.root, self.method, load_model(self.target.root, "auto"))
            if self.count >= len(net.drafted):
                message = f"drafts {len(net.drafted)} tokens, no more than the {self.count} that are to be left"
                raise CheckpointError(message, where=str(self.source.root), hint="leave fewer")
            ids = most_frequent(self.count, texts, net.drafted)
            write_config(out, net.config(ids))
            write_tensors(out / "model.safetensors", net.parts(ids))
