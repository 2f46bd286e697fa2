# SPDX-License-Identifier: Apache-2.0
"""PARD: a draft model trained to draft all tokens of a chain in one pass, at mask tokens after the text.

An et al. 2025, arXiv:2504.18583. The draft's config.json contains the id of the mask token.
"""

from __future__ import annotations

from trtspec.methods.base import Method, suggest_for
from trtspec.methods.draft_head import check_mask, mask_token

METHOD = Method(
    summary="a smaller model drafts all tokens in one pass, the target verifies",
    drafts_with="model",
    has_confidence=True,
    draft_passes="one",
    draft_lens=range(1, 33),
    default_draft_len=8,
    check_model=lambda source: check_mask(mask_token(source), source.reader.positive("vocab_size")),
    suggest=suggest_for(
        lambda source: mask_token(source) is not None and "fc.weight" not in source.tensors,
        "DRAFT was trained to draft in parallel: its config.json has a mask token",
    ),
)
