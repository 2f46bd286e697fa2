# SPDX-License-Identifier: Apache-2.0
"""Training settings: plain values that are part of the step's key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Loss = Literal["kl", "greedy", "reverse_kl", "tv"]


@dataclass(frozen=True)
class TrainSettings:
    """The settings of a training.

    It ends after `steps` (0 for no limit) or `seconds`, whichever comes first; both determine the learning rate
    schedule. `lora` is the rank of the adapters, 0 to train the weights themselves. `learning_rate` is the maximum, 0
    for one derived from the draft's width and `from_scratch`.
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
    """The sizes of a draft created from scratch; 0 for defaults derived from its target."""

    layers: int = 0
    hidden_size: int = 0
    draft_vocab: int = 0


NO_SIZES = Sizes()
