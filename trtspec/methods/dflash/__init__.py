# SPDX-License-Identifier: Apache-2.0
"""DFlash: a block net fills a block of mask tokens after the text in one pass, from hidden states of the target.

Chen et al. 2026, arXiv:2602.06036.
"""

from __future__ import annotations

from trtspec.checkpoints.source import Source
from trtspec.methods.base import DraftHead, HeadTarget, Method, Options, Suggestion
from trtspec.methods.dflash.head import describe, suggest


def read_head(source: Source, base: HeadTarget, options: Options) -> DraftHead:
    """Describe the net in `source`; raise CheckpointError if it is not a DFlash net."""
    return describe(source, base, "dflash")


def _suggest(source: Source) -> Suggestion | None:
    return suggest(source, "dflash")


METHOD = Method(
    summary="a net trained for the target fills a block of tokens in one pass",
    drafts_with="head",
    has_confidence=True,
    draft_passes="one",
    draft_lens=range(1, 33),
    default_draft_len=7,
    read_head=read_head,
    suggest=_suggest,
)
