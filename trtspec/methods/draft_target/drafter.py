# SPDX-License-Identifier: Apache-2.0
"""A smaller model drafts a chain, one token a step.

Its cache holds each row's text as far as it was read, and of the last draft what was accepted and read; the first step
of a proposal reads what came since, and the others write over what was drafted in vain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from trtspec.checkpoints.trtllm import load_checkpoint
from trtspec.core.errors import CheckpointError
from trtspec.engine.drafting.base import Draft, Drafter, DraftSampling, Outcome, Setup
from trtspec.engine.drafting.chain import Floors, draft_chain
from trtspec.engine.drafting.vocab_adapter import reading_of
from trtspec.engine.model.attention_masks import Window
from trtspec.engine.model.decoder import Decoder
from trtspec.engine.prefill import prefill
from trtspec.engine.prefix_cache import PrefixStore


class ModelDrafter(Drafter):
    """Drafts with a converted checkpoint of the target's vocabulary, or of one that it was translated for."""

    def __init__(self, setup: Setup) -> None:
        if setup.root is None:
            raise CheckpointError("draft_target needs a draft checkpoint", hint="name one under speculation.draft")
        room, checkpoint = setup.room, load_checkpoint(setup.root)
        sizes = setup.target.config.vocab_size, checkpoint.config.vocab_size
        self._reading = reading_of(setup.root, *sizes, room.device)
        self._room = room.max_len * self._reading.longer
        length = room.length * self._reading.longer
        self._model = Decoder(checkpoint, room.rows, self._room, room.device, room.dtype, length)
        self._prefixes = PrefixStore(self._model.cache, room.kept_tokens * self._reading.longer)
        self._floors = Floors(setup.options.stop_below, setup.confidence)
        self._draws: bool = setup.options.use_draft_logits
        self._known = [0] * room.rows  # tokens of each row's text that were read
        self._at = [0] * room.rows  # what they are of the draft's, which are in the cache
        self._ahead = 0  # drafted tokens that were read in this step
        self.vocab_size = None if self._reading.longer > 1 else sizes[1]

    def begin(self, prompts: Sequence[Sequence[int]], first_row: int, max_tokens: int) -> None:
        """Fill the draft's cache with the prompts, as far as they fit."""
        spelled = [self._reading.spell(prompt)[: self._room] for prompt in prompts]
        kept = [self._prefixes.restore(row, text) for row, text in enumerate(spelled, first_row)]
        prefill(self._model, spelled, first_row, max_tokens, starts=kept)
        self._known[first_row : first_row + len(prompts)] = map(len, prompts)
        self._at[first_row : first_row + len(prompts)] = map(len, spelled)

    def propose(self, texts: Sequence[Sequence[int]], depth: int, sampling: DraftSampling | None) -> Draft:
        """Draft one token a step, until no row goes on; nothing of a row whose text has become too long."""
        model, reading, unread = self._model, self._reading, self._unread(texts, depth)
        rows = [each or (0, [0]) for each in unread]
        width = max(len(new) for _, new in rows)
        first = model.windows.chain([start for start, _ in rows], width)
        windows = [first, *model.windows.singles([start + len(new) for start, new in rows], depth - 1)]
        tokens = torch.tensor([new + [0] * (width - len(new)) for _, new in rows], device=model.device)
        lasts = torch.tensor([row * width + len(new) - 1 for row, (_, new) in enumerate(rows)], device=model.device)
        self._ahead = -1

        def forward(tokens: Tensor, window: Window) -> Tensor:
            self._ahead += 1
            if window is first:
                return reading.shared(model.forward(tokens, window, lasts))
            return reading.shared(model.forward(reading.read(tokens), window))

        drawn = sampling if self._draws else None
        draft = draft_chain(forward, tokens, windows, drawn, self._floors, reading.vocabulary)
        lens = [length if each else 0 for length, each in zip(draft.lens or (), unread, strict=True)]
        return replace(draft, lens=lens)

    def _unread(self, texts: Sequence[Sequence[int]], depth: int) -> list[tuple[int, list[int]] | None]:
        """Return where what is new of each row begins in the cache, and its tokens; None once no draft fits behind."""
        found: list[tuple[int, list[int]] | None] = []
        for row, text in enumerate(texts):
            start, new = self._at[row], self._reading.spell(text[self._known[row] :])
            fits = start + len(new) + depth <= self._room
            self._known[row], self._at[row] = len(text), start + len(new) if fits else self._room
            found.append((start, new) if fits else None)
        return found

    def observe(self, outcome: Outcome) -> None:
        """Keep what was accepted of what the model has read."""
        for row, result in enumerate(outcome.results):
            kept = min(len(result.path), self._ahead)
            self._known[row] += kept
            self._at[row] += kept
        self._ahead = 0

    def keep(self, row: int, text: Sequence[int]) -> None:
        """Keep keys and values of what was read."""
        if self._at[row] < self._room:  # else nothing is known of what lies there
            self._prefixes.keep(row, self._reading.spell(text), self._at[row])

    def move_row(self, source: int, target: int, length: int) -> None:
        """Move the row in the draft's cache."""
        self._model.cache.move_row(source, target, self._at[source])
        self._known[target], self._at[target] = self._known[source], self._at[source]


DRAFTER = ModelDrafter
