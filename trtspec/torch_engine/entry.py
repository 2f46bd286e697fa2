# SPDX-License-Identifier: Apache-2.0
"""Requests that enter the engine: what of their prompts is to be read, and what the target said of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from trtspec.generation.running import Running
from trtspec.torch_engine.external_drafts import ExternalDrafts
from trtspec.torch_engine.model.decoder import Decoder
from trtspec.torch_engine.prefill import Chunk, Prefilled, chunks
from trtspec.torch_engine.prefixes import PrefixStore


@dataclass(frozen=True)
class Entry:
    """New requests, which become the rows from `first_row` on.

    `chunks` are passes of at most `max_tokens` tokens over what no text that ended began with, external drafts
    included; `found` has what the target gave for those that were read.
    """

    batch: Sequence[Running]
    first_row: int
    max_tokens: int
    external: ExternalDrafts
    chunks: Sequence[Chunk]
    found: Prefilled = field(default_factory=Prefilled)

    @classmethod
    def of(
        cls, batch: Sequence[Running], first_row: int, max_tokens: int, target: Decoder, prefixes: PrefixStore
    ) -> Entry:
        """Return that of new requests; what is kept of their texts is written into their rows."""
        external = ExternalDrafts.of(batch, target.device)
        texts = [[*running.text, *running.external_draft] for running in batch]
        known = [prefixes.restore(row, running.text) for row, running in enumerate(batch, first_row)]
        passes = chunks(target, texts, first_row, max_tokens, external.lens, known)
        return cls(batch, first_row, max_tokens, external, [*passes])
