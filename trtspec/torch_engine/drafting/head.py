# SPDX-License-Identifier: Apache-2.0
"""What a head has to be so that features of the target can be drafted with: EAGLE's idea, whatever the layers are.

A pair is the feature of position t and the token after it, at t + 1; it stands at position t of the head's cache. From
it the head makes a guess at the feature of position t + 1, which says what token comes after that and, paired with
that token, is what the head goes on from where the target has no feature yet.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor

from trtspec.checkpoint.model_config import ModelConfig
from trtspec.torch_engine.drafting.base import Room
from trtspec.torch_engine.model.cache import KVCache
from trtspec.torch_engine.model.windows import Window, Windows


class FeatureHead(ABC):
    """A head of few layers; `config` describes these, the features are `config.hidden_size` wide.

    `aux_layers` are the target's auxiliary hidden-state layers that it reads (see `Decoder.forward_with_features`).
    Tokens are ids of the target except where it says otherwise: a head may draft from a smaller vocabulary of its own.
    """

    aux_layers: tuple[int, ...]

    def __init__(self, config: ModelConfig, room: Room) -> None:
        self.config = config
        self.device, self.dtype = room.device, room.dtype
        self.windows = Windows(config, room.max_len, room.device, room.dtype)
        self.cache = KVCache(config, room.rows, room.max_len, room.device, room.dtype)

    @abstractmethod
    def fuse(self, hidden_states: Tensor) -> Tensor:
        """Return the features [n, hidden] of hidden states of the target [n, aux_layers * the target's hidden]."""

    @abstractmethod
    def forward(self, tokens: Tensor, features: Tensor, window: Window) -> Tensor:
        """Return the features [rows * width, hidden] that follow on pairs, writing their keys and values.

        `tokens` are [rows, width], `features` [rows * width, hidden], and `window` says where the pairs stand.
        """

    @abstractmethod
    def logits(self, features: Tensor) -> Tensor:
        """Return logits [n, the head's vocabulary] of the tokens after features [n, hidden]."""

    def to_target(self, tokens: Tensor) -> Tensor:
        """Return the target's ids of tokens that were chosen from `logits`."""
        return tokens

    def spread(self, probs: Tensor) -> Tensor:
        """Return probabilities [..., the head's vocabulary] over the target's vocabulary."""
        return probs
