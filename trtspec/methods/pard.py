# SPDX-License-Identifier: Apache-2.0
"""A draft model that was trained to draft all tokens of a chain in one pass, at mask tokens behind the text.

PARD, An et al. 2025, arXiv:2504.18583. Its config.json names the mask token.
"""

from __future__ import annotations

from trtspec.checkpoint.source import Source
from trtspec.methods.base import Method, Suggestion

# In the order that vLLM reads them; vllm-project/vllm:vllm/v1/worker/gpu/spec_decode/utils.py@v0.32.0.
MASK_KEYS = ("mask_token_id", "pard_token", "ptd_token_id")


def mask_token(source: Source) -> int | None:
    """Return the id that stands for a token to be drafted, None where config.json names none."""
    return next((source.reader.get(key, int) for key in MASK_KEYS if key in source.config), None)


def _suggest(source: Source) -> Suggestion | None:
    is_pard = mask_token(source) is not None and "fc.weight" not in source.tensors
    return (
        Suggestion(0, "DRAFT was trained to draft in parallel: its config.json names a mask token") if is_pard else None
    )


METHOD = Method(
    summary="a smaller model that drafts all tokens in one pass, the target verifies",
    drafts_with="model",
    draft_lens=range(1, 33),
    default_draft_len=8,
    suggest=_suggest,
)
