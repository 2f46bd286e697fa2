# SPDX-License-Identifier: Apache-2.0
"""Interface between trainable drafts and the training loop."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from trtspec.core.registry import find_extension
from trtspec.engine.model.decoder import Decoder
from trtspec.training.batches import TrainingBatch
from trtspec.training.layers import View
from trtspec.training.settings import TrainSettings
from trtspec.training.tensors import SourceTensors
from trtspec.training.texts import TrainingText

PACKAGE, ATTRIBUTE, PART = "trtspec.methods", "TRAINABLE", "training"
STEP_WEIGHT = 0.8  # loss weight of a pass relative to the previous: it counts only if earlier tokens are right


@dataclass(frozen=True)
class DraftSource:
    """The inputs for loading a draft: its directory, its target, and the number of consecutive drafted tokens.

    `texts` are the training texts.
    """

    root: Path
    target: Decoder
    draft_len: int
    settings: TrainSettings
    texts: Sequence[TrainingText] = ()


class TrainableDraft(ABC):
    """A draft with gradients.

    A chain starts at each place of a batch; the logits of its `passes` are for the next token and those after it. A
    draft that `reads_on` has a single pass and drafts a chain autoregressively. `aux_layers` are the target's hidden
    states that it reads (see `Decoder.forward_with_features`). `vocab` are the target's ids [draft vocab] of the tokens
    that it drafts, or None for the target's first ids.
    """

    tensors: SourceTensors
    width: int
    passes: int = 1
    reads_on: bool = False
    aux_layers: tuple[int, ...] = ()
    vocab: Tensor | None = None

    @abstractmethod
    def hidden(self, view: View, batch: TrainingBatch, features: Tensor | None) -> list[Tensor]:
        """Return for each pass the hidden states [places, hidden] of the chains that start at a batch's places.

        `features` are the target's, [rows, width, aux_layers * hidden]; the last that a chain sees belongs to the token
        before its place. States beyond the text are undefined.
        """

    @abstractmethod
    def logits(self, view: View, hidden: Tensor, step: int) -> Tensor:
        """Return logits [n, draft vocab] of some of the hidden states [n, hidden] of pass `step`."""

    def sureness(self, view: View, hidden: Tensor, step: int) -> Tensor | None:
        """Return the draft's confidence that its token is accepted, as logits [n], or None if not predicted."""
        return None


@dataclass(frozen=True)
class DraftTrainer:
    """A method whose draft can be trained; `methods/NAME/training.py` defines it as `TRAINABLE`."""

    load: Callable[[DraftSource], TrainableDraft]


def find_trainable(method: str) -> DraftTrainer:
    """Return the trainable of a method; the TrtspecError for an unsupported method lists the supported ones."""
    found: DraftTrainer = find_extension(PACKAGE, ATTRIBUTE, method, "draft to train, of method", PART)
    return found
