# SPDX-License-Identifier: Apache-2.0
"""The interface of draft heads that predict the target's features, such as EAGLE's.

A pair is the feature of position t and the token at t + 1; it is stored at position t of the head's cache. From it the
head predicts the feature of position t + 1, which gives the logits of the next token. The pair of this feature and that
token is the head's next input, because the target's feature for it is not available yet.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor

from trtspec.checkpoints.model_config import ModelConfig
from trtspec.engine.drafting.base import BatchShape
from trtspec.engine.drafting.vocabulary import SAME, Vocabulary
from trtspec.engine.model.attention_masks import Window, Windows
from trtspec.engine.model.cache import KVCache


class FeatureHead(ABC):
    """A draft head; `config` describes its layers, features are `config.hidden_size` wide.

    `aux_layers` are the target's auxiliary hidden-state layers that it reads (see `Decoder.forward_with_features`).
    Tokens are the target's ids unless stated otherwise: a head may have a smaller `vocabulary`.
    """

    aux_layers: tuple[int, ...]
    vocabulary: Vocabulary = SAME

    def __init__(self, config: ModelConfig, room: BatchShape) -> None:
        self.config = config
        self.device, self.dtype = room.device, room.dtype
        self.windows = Windows(config, room.max_len, room.device, room.dtype)
        self.cache = KVCache(config, room.rows, room.max_len, room.device, room.dtype)

    @abstractmethod
    def fuse(self, hidden_states: Tensor) -> Tensor:
        """Return the features [n, hidden] for hidden states of the target [n, aux_layers * the target's hidden]."""

    @abstractmethod
    def forward(self, tokens: Tensor, features: Tensor, window: Window) -> Tensor:
        """Return the features [rows * width, hidden] after pairs, and write the keys and values of the pairs.

        `tokens` are [rows, width], `features` [rows * width, hidden], and `window` has the pairs' positions.
        """

    @abstractmethod
    def logits(self, features: Tensor) -> Tensor:
        """Return the logits [n, the head's vocabulary] of the tokens after features [n, hidden]."""
