# SPDX-License-Identifier: Apache-2.0
"""DSpark: a block net with a small sequential head, so that each token of the block depends on the previous one.

deepseek-ai/DeepSpec: DFlash's net, a low-rank Markov head, and a head that estimates acceptance.
"""

from __future__ import annotations

from trtspec.checkpoints.source import Source
from trtspec.methods.base import DraftHead, HeadTarget, Method, Options, Suggestion
from trtspec.methods.dflash import describe, suggest


def read_head(source: Source, base: HeadTarget, options: Options) -> DraftHead:
    """Describe the net in `source`; raise CheckpointError if it is not a DSpark net."""
    return describe(source, base, "dspark")


def _suggest(source: Source) -> Suggestion | None:
    return suggest(source, "dspark")


METHOD = Method(
    summary="a net trained for the target fills a block, each token depending on the one before it",
    drafts_with="head",
    has_confidence=True,
    draft_passes="one",
    draft_lens=range(1, 33),
    default_draft_len=7,
    read_head=read_head,
    suggest=_suggest,
)
