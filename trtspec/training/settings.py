# SPDX-License-Identifier: Apache-2.0
"""How a draft is trained: plain values, which are part of the step's key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Loss = Literal["kl", "greedy", "reverse_kl", "tv"]


@dataclass(frozen=True)
class TrainSettings:
    """The settings of a training.

    It ends after `steps` (0 for no limit) or `seconds`, whichever comes first; both decide the learning rate's way.
    `lora` is the rank of what is trained beside each matrix, 0 to train the weights themselves. `learning_rate` is the
    highest, 0 for one that fits the draft's width, and whether it is `from_scratch`.
    """

    loss: Loss
    lora: int
    learning_rate: float
    steps: int
    seconds: float
    seed: int
    from_scratch: bool = False


@dataclass(frozen=True)
class Sizes:
    """The sizes of a draft that is made from nothing; 0 for those that follow from its target."""

    layers: int = 0
    hidden_size: int = 0
    draft_vocab: int = 0


NO_SIZES = Sizes()
