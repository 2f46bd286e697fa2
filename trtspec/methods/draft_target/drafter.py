# SPDX-License-Identifier: Apache-2.0
"""Drafts a chain with a smaller model, one token per pass.

The model's KV cache contains the processed part of each row's text, including accepted tokens of the last draft. The
first pass of a proposal processes the tokens that are new since then, and overwrites the entries of rejected tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from trtspec.checkpoints.trtllm import load_checkpoint
from trtspec.core.errors import CheckpointError
from trtspec.engine.device import pad_rows
from trtspec.engine.drafting.base import (
    ConfidenceFloor,
    Drafter,
    DrafterConfig,
    DraftSampling,
    DraftTokens,
    VerifyOutcome,
    draft_chain,
    load_vocabulary,
)
from trtspec.engine.model.decoder import Decoder
from trtspec.engine.model.positions import Window
from trtspec.engine.prefill import PrefixCache, prefill


class ModelDrafter(Drafter):
    """Base of the drafters that run a draft model: the converted checkpoint, its KV cache and its vocabulary mapping.

    The draft model has the target's vocabulary, or its checkpoint contains a mapping between the two vocabularies.
    """

    def __init__(self, setup: DrafterConfig, method: str) -> None:
        if setup.root is None:
            raise CheckpointError(f"{method} needs a draft checkpoint", hint="set speculation.draft")
        room, checkpoint = setup.room, load_checkpoint(setup.root)
        sizes = setup.target.config.vocab_size, checkpoint.config.vocab_size
        self._reading = load_vocabulary(setup.root, *sizes, room.device)
        self._room = room.max_len * self._reading.longer
        length = room.length * self._reading.longer
        self._model = Decoder(checkpoint, room.rows, self._room, room.device, room.dtype, length)
        self._prefixes = PrefixCache(self._model.cache, room.kept_tokens * self._reading.longer)
        self._known = [0] * room.rows  # number of processed tokens of each row's text
        self._at = [0] * room.rows  # number of tokens of each row in the draft model's cache
        self.vocab_size = None if self._reading.longer > 1 else sizes[1]

    def begin(self, prompts: Sequence[Sequence[int]], first_row: int, max_tokens: int) -> None:
        """Prefill the draft model's cache with the prompts, truncated to the cache's length."""
        encoded = [self._reading.spell(prompt)[: self._room] for prompt in prompts]
        cached = [self._prefixes.restore(row, text) for row, text in enumerate(encoded, first_row)]
        prefill(self._model, encoded, first_row, max_tokens, starts=cached)
        self._known[first_row : first_row + len(prompts)] = map(len, prompts)
        self._at[first_row : first_row + len(prompts)] = map(len, encoded)

    def retain(self, row: int, text: Sequence[int]) -> None:
        """Add the keys and values of a row's processed tokens to the prefix cache."""
        if self._at[row] < self._room:  # otherwise the text was too long, and the entries are undefined
            self._prefixes.retain(row, self._reading.spell(text), self._at[row])

    def move_row(self, source: int, target: int, length: int) -> None:
        self._model.cache.move_row(source, target, self._at[source])
        self._known[target], self._at[target] = self._known[source], self._at[source]


class DraftModelDrafter(ModelDrafter):
    """Drafts with a smaller model, one token per pass."""

    def __init__(self, setup: DrafterConfig) -> None:
        super().__init__(setup, "draft_target")
        self._floors = ConfidenceFloor(setup.options.stop_below, setup.confidence)
        self._draws: bool = setup.options.use_draft_logits
        self._ahead = 0  # number of draft tokens processed in this step

    def propose(self, texts: Sequence[Sequence[int]], depth: int, sampling: DraftSampling | None) -> DraftTokens:
        """Draft one token per pass until every row's chain has ended; a row whose text exceeds the cache gets none."""
        model, reading, unread = self._model, self._reading, self._unread(texts, depth)
        rows = [each or (0, [0]) for each in unread]
        width = max(len(new) for _, new in rows)
        first = model.windows.chain([start for start, _ in rows], width)
        windows = model.windows.singles([start + len(new) for start, new in rows], depth - 1)
        tokens = pad_rows([new for _, new in rows], model.device)
        lasts = torch.tensor([row * width + len(new) - 1 for row, (_, new) in enumerate(rows)], device=model.device)
        logits = reading.shared(model.forward(tokens, first, lasts))
        self._ahead = 0

        def forward(tokens: Tensor, window: Window) -> Tensor:
            self._ahead += 1
            return reading.shared(model.forward(reading.to_draft(tokens), window))

        drawn = sampling if self._draws else None
        draft = draft_chain(logits, forward, windows, drawn, self._floors, reading)
        lens = [length if each else 0 for length, each in zip(draft.lens or (), unread, strict=True)]
        return replace(draft, lens=lens)

    def _unread(self, texts: Sequence[Sequence[int]], depth: int) -> list[tuple[int, list[int]] | None]:
        """Return (cache position, tokens) of each row's unprocessed tokens, or None if a draft exceeds the cache."""
        found: list[tuple[int, list[int]] | None] = []
        for row, text in enumerate(texts):
            start, new = self._at[row], self._reading.spell(text[self._known[row] :])
            fits = start + len(new) + depth <= self._room
            self._known[row], self._at[row] = len(text), start + len(new) if fits else self._room
            found.append((start, new) if fits else None)
        return found

    def observe(self, outcome: VerifyOutcome) -> None:
        """Advance each row's processed length by the accepted tokens that the draft model has already processed."""
        for row, result in enumerate(outcome.results):
            own = len(result.path) if outcome.own is None else outcome.own[row]
            accepted = min(len(result.path), own, self._ahead)
            self._known[row] += accepted
            self._at[row] += accepted
        self._ahead = 0


DRAFTER = DraftModelDrafter
