# SPDX-License-Identifier: Apache-2.0
"""Bases of drafters that read the target's hidden states: draft heads such as EAGLE's, and Medusa's kind of heads.

A `FeatureHead` predicts the target's features. A pair is the feature of position t and the token at t + 1; it is stored
at position t of the head's cache. From it the head predicts the feature of position t + 1, which gives the logits of
the next token. The pair of this feature and that token is the head's next input, because the target's feature for it is
not available yet.

The head's cache keeps only pairs with the target's features. The features of a step's accepted path wait until the
token after them is known, and go through the head when the next draft begins. Pairs of drafted tokens are stored after
them in the cache and are then overwritten.

A `HiddenStateDrafter` starts from the target's hidden state at the end of the verified text.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from trtspec.checkpoints.model_config import ModelConfig
from trtspec.engine.drafting.base import BatchShape, Drafter, DrafterConfig, DraftSampling, DraftTokens, VerifyOutcome
from trtspec.engine.drafting.chain import ConfidenceFloor, draft_chain
from trtspec.engine.drafting.vocabulary import SAME, Vocabulary
from trtspec.engine.model.attention import KVCache
from trtspec.engine.model.decoder import FINAL
from trtspec.engine.model.positions import Window, Windows


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


class TreeBuilder(ABC):
    """Builds drafts of one shape; `scratch` is the number of cache positions of the head that it needs after a text."""

    scratch: int

    @abstractmethod
    def grow(
        self, head: FeatureHead, features: Tensor, ends: list[int], depth: int, sampling: DraftSampling | None
    ) -> DraftTokens:
        """Return a draft of at most `depth` tokens in a row after each row's text.

        `features` [rows, hidden] follow each row's last pair, which is at `ends[row]` of the head's cache.
        """


class Chain(TreeBuilder):
    """A chain of the most probable tokens, or of tokens sampled from the head's distribution if the request samples."""

    def __init__(self, depth: int, floors: ConfidenceFloor) -> None:
        self.scratch, self._floors = depth, floors

    def grow(
        self, head: FeatureHead, features: Tensor, ends: list[int], depth: int, sampling: DraftSampling | None
    ) -> DraftTokens:
        """Return a chain of `depth` tokens, or fewer if the head's confidence is too low."""

        def forward(tokens: Tensor, window: Window) -> Tensor:
            nonlocal features
            features = head.forward(tokens.unsqueeze(1), features, window)
            return head.logits(features)

        windows = head.windows.singles([end + 1 for end in ends], depth - 1)
        return draft_chain(head.logits(features), forward, windows, sampling, self._floors, head.vocabulary)


class FeaturePairDrafter(Drafter):
    """Keeps a head's cache in sync with the text: prompts are processed, and accepted features wait for `_take`."""

    def __init__(self, head: FeatureHead) -> None:
        self._head = head
        self.aux_layers = head.aux_layers
        self._waiting: dict[int, list[Tensor]] = {}  # by row: hidden states of the target [n, aux_layers * hidden]
        self._prompts: Sequence[Sequence[int]] = ()
        self._first_row = 0

    def begin(self, prompts: Sequence[Sequence[int]], first_row: int, max_tokens: int) -> None:
        """Keep the prompts until the target has processed them."""
        self._prompts, self._first_row = prompts, first_row

    def read(self, features: Tensor, start: int) -> None:
        """Write the pairs of a chunk into the head's cache.

        The token after a prompt's last feature is unknown: its pair and later ones are placeholders, overwritten later.
        """
        rows, width, _ = features.shape
        following = [[*prompt[start + 1 : start + 1 + width]] for prompt in self._prompts]
        window = self._head.windows.chain([start] * rows, width, self._first_row)
        self._head.forward(self._padded(following, width), self._head.fuse(features.flatten(0, 1)), window)
        for row, prompt in enumerate(self._prompts):
            if start < len(prompt) <= start + width:
                at = len(prompt) - 1 - start
                self._waiting[self._first_row + row] = [features[row, at : at + 1].clone()]

    def _take(self, rows: int) -> list[Tensor]:
        """Remove and return each row's waiting hidden states [n, aux_layers * hidden]."""
        waiting = [torch.cat(self._waiting[row]) for row in range(rows)]
        self._waiting = {row: [] for row in range(rows)}
        return waiting

    def observe(self, outcome: VerifyOutcome) -> None:
        """Keep the hidden states of each accepted path until the token after them is known."""
        for row, accepted in enumerate(outcome.accepted_features()):
            self._waiting[row].append(accepted)

    def move_row(self, source: int, target: int, length: int) -> None:
        """Move the row's cache and its waiting hidden states."""
        self._head.cache.move_row(source, target, length)
        self._waiting[target] = self._waiting[source]

    def _padded(self, tokens: Sequence[Sequence[int]], width: int) -> Tensor:
        return torch.tensor([[*row, *[0] * (width - len(row))] for row in tokens], device=self._head.device)


class FeatureDrafter(FeaturePairDrafter):
    """Drafts with a head, token by token; a `TreeBuilder` determines the shape of the draft."""

    def __init__(self, head: FeatureHead, builder: TreeBuilder) -> None:
        super().__init__(head)
        self._builder = builder

    def propose(self, texts: Sequence[Sequence[int]], depth: int, sampling: DraftSampling | None) -> DraftTokens:
        """Process the waiting features, and grow the draft from the feature that the head predicts after them."""
        head, waiting = self._head, self._take(len(texts))
        counts = [len(features) for features in waiting]
        features = pad_sequence(waiting, batch_first=True)
        width = features.shape[1]
        tokens = self._padded([text[-count:] for text, count in zip(texts, counts, strict=True)], width)
        window = head.windows.chain([len(text) - 1 - count for text, count in zip(texts, counts, strict=True)], width)
        found = head.forward(tokens, head.fuse(features.flatten(0, 1)), window)
        last = [row * width + count - 1 for row, count in enumerate(counts)]
        return self._builder.grow(head, found[last], [len(text) - 2 for text in texts], depth, sampling)


class HiddenStateDrafter(Drafter):
    """Keeps in `_hidden` [rows, hidden] the hidden state from which each text's last token was predicted.

    It is the hidden state after the final norm at the second-to-last token.
    """

    aux_layers = (FINAL,)

    def __init__(self, setup: DrafterConfig) -> None:
        target, rows = setup.target, setup.room.rows
        self._hidden = torch.zeros((rows, target.config.hidden_size), device=target.device, dtype=target.dtype)
        self._rows = torch.arange(rows, device=target.device)
        self._first_row, self._ends = 0, [0]

    def begin(self, prompts: Sequence[Sequence[int]], first_row: int, max_tokens: int) -> None:
        """Store the end positions of the prompts."""
        self._first_row, self._ends = first_row, [len(prompt) - 1 for prompt in prompts]

    def read(self, features: Tensor, start: int) -> None:
        """Keep the hidden state at the end of each prompt that ends in this chunk."""
        for row, end in enumerate(self._ends):
            if start <= end < start + features.shape[1]:
                self._hidden[self._first_row + row] = features[row, end - start]

    def observe(self, outcome: VerifyOutcome) -> None:
        """Keep the hidden state of each row's last accepted token."""
        if outcome.features is None:
            raise ValueError("a drafter with aux_layers needs hidden states")
        rows = len(outcome.results)
        ends = torch.tensor([result.path[-1] if result.path else 0 for result in outcome.results])
        self._hidden[:rows] = outcome.features[self._rows[:rows], ends.to(self._rows.device)]

    def move_row(self, source: int, target: int, length: int) -> None:
        """Move the row's hidden state."""
        self._hidden[target] = self._hidden[source]
