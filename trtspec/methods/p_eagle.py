# SPDX-License-Identifier: Apache-2.0
"""An EAGLE-3 net of several layers that drafts a whole chain in one pass, at mask tokens behind the text.

P-EAGLE, Hui et al. 2026, arXiv:2602.01469.
"""

from __future__ import annotations

from trtspec.checkpoint.rules import Skip
from trtspec.checkpoint.source import Source
from trtspec.methods.base import DraftHead, HeadTarget, Method, Options


def read_head(source: Source, base: HeadTarget, options: Options) -> DraftHead:
    """Describe the net in `source`; raises CheckpointError if it is no P-EAGLE net."""
    return DraftHead(config={}, rules=[], skips=[Skip(".*", "runs as it is stored")])


METHOD = Method(
    summary="a net trained for the target drafts a chain from its hidden states in one pass",
    drafts_with="head",
    draft_lens=range(1, 17),
    default_draft_len=7,
    read_head=read_head,
)
