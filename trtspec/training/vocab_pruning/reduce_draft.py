# SPDX-License-Identifier: Apache-2.0
"""The step that prunes a net's draft vocabulary to the most frequent tokens in its target's responses."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from trtspec.checkpoints.source_model import load_model
from trtspec.checkpoints.writer import write_config, write_tensors
from trtspec.core.errors import CheckpointError
from trtspec.store.files import Files
from trtspec.store.step import Inputs, Step, StepProgress
from trtspec.training.answer_prompts import AnswerPrompts
from trtspec.training.texts import HELD_OUT, TEXTS, read_texts

METHODS = ("dflash", "dspark", "eagle3", "p_eagle")


@dataclass(frozen=True)
class ReduceDraft(Step):
    """Write the net in `source` with `count` of its draft tokens; `target` is its target model.

    Held-out texts do not influence the choice.
    """

    VERSION: ClassVar[int] = 1

    target: Files
    source: Files
    texts: AnswerPrompts
    method: str
    count: int

    @property
    def name(self) -> str:
        """Return the step's name."""
        return "reduce-draft"

    def run(self, out: Path, inputs: Inputs, progress: StepProgress) -> None:
        """Write the net; CheckpointError if it does not draft more tokens than `count`."""
        from trtspec.training.vocab_pruning.reduced_net import ReducedNet  # imports torch, which planning does not need
        from trtspec.training.vocab_pruning.vocabulary import most_frequent

        texts = [text for text in read_texts(inputs[self.texts] / TEXTS) if text.side != HELD_OUT]
        with self.source.unchanged(), self.target.unchanged():
            net = ReducedNet(self.source.root, self.method, load_model(self.target.root, "auto"))
            if self.count >= len(net.drafted):
                message = f"drafts {len(net.drafted)} tokens, not more than the requested {self.count}"
                raise CheckpointError(message, where=str(self.source.root), hint="request fewer")
            ids = most_frequent(self.count, texts, net.drafted)
            write_config(out, net.config(ids))
            write_tensors(out / "model.safetensors", net.parts(ids))
