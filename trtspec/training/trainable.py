# SPDX-License-Identifier: Apache-2.0
"""The interface of drafts that can be trained to the loop that trains them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from trtspec.core.registry import find
from trtspec.engine.model.decoder import Decoder
from trtspec.training.batches import Batch
from trtspec.training.layers import View
from trtspec.training.settings import TrainSettings
from trtspec.training.tensors import SourceTensors
from trtspec.training.texts import Text

PACKAGE, ATTRIBUTE, PART = "trtspec.methods", "TRAINABLE", "training"
STEP_WEIGHT = 0.8  # of a pass's loss, relative to the one before: a draft counts only where those before it are right


@dataclass(frozen=True)
class DraftSource:
    """What a draft is read from: its directory, the target that it drafts for, and how much it drafts in a row.

    `texts` are those that it will be trained on.
    """

    root: Path
    target: Decoder
    draft_len: int
    settings: TrainSettings
    texts: Sequence[Text] = ()


class Student(ABC):
    """A draft with gradients.

    A chain begins at each place of a batch; its `passes` logits are for the tokens behind that place and those after
    it. One that `reads_on` has a single pass, and drafts a chain by reading what it drafted. `aux_layers` are the
    target's hidden states that it reads (see `Decoder.forward_with_features`), `vocab` the target's ids [draft vocab]
    of the tokens that it drafts, None where these are the target's first ones.
    """

    tensors: SourceTensors
    width: int
    passes: int = 1
    reads_on: bool = False
    aux_layers: tuple[int, ...] = ()
    vocab: Tensor | None = None

    @abstractmethod
    def hidden(self, view: View, batch: Batch, features: Tensor | None) -> list[Tensor]:
        """Return for each pass hidden states [places, hidden] of the chains that begin at a batch's places.

        `features` are the target's, [rows, width, aux_layers * hidden]; the last that a chain sees is that of the token
        before its place. What drafts beyond the text is meaningless.
        """

    @abstractmethod
    def logits(self, view: View, hidden: Tensor, step: int) -> Tensor:
        """Return logits [n, draft vocab] of some of the hidden states [n, hidden] of pass `step`."""

    def sureness(self, view: View, hidden: Tensor, step: int) -> Tensor | None:
        """Return logits [n] of how probable the draft holds it that what it drafts there is accepted; None: no idea."""
        return None


@dataclass(frozen=True)
class Trainable:
    """A method whose draft can be trained; `methods/NAME/training.py` defines it as `TRAINABLE`."""

    load: Callable[[DraftSource], Student]


def find_trainable(method: str) -> Trainable:
    """Return how a method's draft is trained; raises TrtspecError that lists the methods whose can be."""
    found: Trainable = find(PACKAGE, ATTRIBUTE, method, "draft to train, of method", PART)
    return found
