# SPDX-License-Identifier: Apache-2.0
"""The interface of drafts that can be trained to the loop that trains them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from trtspec.registry import find
from trtspec.torch_engine.model.decoder import Decoder
from trtspec.training.layers import View
from trtspec.training.settings import TrainSettings
from trtspec.training.tensors import SourceTensors

PACKAGE, ATTRIBUTE = "trtspec.training.drafts", "TRAINABLE"
STEP_WEIGHT = 0.8  # of a pass's loss, relative to the one before: a draft counts only where those before it are right


@dataclass(frozen=True)
class DraftSource:
    """What a draft is read from: its directory, the target that it drafts for, and how much it drafts in a row."""

    root: Path
    target: Decoder
    draft_len: int
    settings: TrainSettings


class Student(ABC):
    """A draft with gradients.

    Its `passes` logits are those of the tokens it drafts in a row: at position t of a text those of pass s are for the
    token at t + `ahead` + s. One that has a single pass drafts a chain by reading what it drafted. `aux_layers` are the
    target's hidden states that it reads (see `Decoder.forward_with_features`), `vocab` the target's ids [draft vocab]
    of the tokens that it drafts, None where these are the target's first ones.
    """

    tensors: SourceTensors
    width: int
    ahead: int = 1
    passes: int = 1
    aux_layers: tuple[int, ...] = ()
    vocab: Tensor | None = None

    @abstractmethod
    def hidden(self, view: View, tokens: Tensor, features: Tensor | None) -> list[Tensor]:
        """Return for each pass hidden states [rows, positions, hidden] of tokens [rows, positions].

        `features` are the target's, [rows, positions, aux_layers * hidden]. What stands at places whose draft would
        reach beyond the text is meaningless.
        """

    @abstractmethod
    def logits(self, view: View, hidden: Tensor) -> Tensor:
        """Return logits [n, draft vocab] of some of those hidden states [n, hidden]."""


@dataclass(frozen=True)
class Trainable:
    """A method whose draft can be trained; a module of `drafts/`, named as the method, defines it as `TRAINABLE`."""

    load: Callable[[DraftSource], Student]


def find_trainable(method: str) -> Trainable:
    """Return how a method's draft is trained; raises TrtspecError that lists the methods whose can be."""
    found: Trainable = find(PACKAGE, ATTRIBUTE, method, "draft to train, of method")
    return found
