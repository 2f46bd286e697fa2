# SPDX-License-Identifier: Apache-2.0
"""Suffix decoding: drafts the most frequent continuation of the text's last tokens in the text and in earlier answers.

Oliaro et al. 2024, arXiv:2411.04975. Options and defaults match vLLM, which uses arctic-inference
(vllm-project/vllm:vllm/config/speculative.py@v0.32.0, suffix_decoding_*).
"""

from __future__ import annotations

from pydantic import Field

from trtspec.methods.base import Method, Options


class SuffixOptions(Options):
    """Sizes of the suffix trees, and limits of a draft."""

    max_tree_depth: int = Field(default=24, ge=1, le=64, description="Maximum tokens of a match plus its draft")
    max_cached_requests: int = Field(
        default=10_000, ge=0, le=1_000_000, description="Number of earlier answers to search; 0 searches only the text"
    )
    max_spec_factor: float = Field(default=1.0, ge=0, le=64, description="Maximum drafted tokens per matched token")
    min_token_prob: float = Field(
        default=0.1, ge=0, le=1, description="Stop at tokens with a lower estimated probability"
    )


METHOD = Method(
    summary="drafts the most frequent continuation of the last tokens, from the text and from earlier answers",
    drafts_with="nothing",
    draft_passes="none",
    draft_lens=range(1, 65),
    default_draft_len=24,
    options=SuffixOptions,
    variants=lambda options: (
        {"max_spec_factor": factor, "min_token_prob": least} for factor in (0.5, 1.0, 2.0, 4.0) for least in (0.1, 0.3)
    ),
)
