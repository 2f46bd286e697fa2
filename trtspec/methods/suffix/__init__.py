# SPDX-License-Identifier: Apache-2.0
"""Suffix decoding: drafts what most often followed the text's last tokens, in it and in earlier answers.

Oliaro et al. 2024, arXiv:2411.04975. Options and defaults are those of vLLM, which calls arctic-inference
(vllm-project/vllm:vllm/config/speculative.py@v0.32.0, suffix_decoding_*).
"""

from __future__ import annotations

from pydantic import Field

from trtspec.methods.base import Method, Options


class SuffixOptions(Options):
    """The sizes of the suffix trees, and how far a match is trusted."""

    max_tree_depth: int = Field(default=24, ge=1, le=64, description="Tokens of a match and its draft together")
    max_cached_requests: int = Field(
        default=10_000, ge=0, le=1_000_000, description="Earlier answers that are looked up; 0 looks up the text alone"
    )
    max_spec_factor: float = Field(
        default=1.0, ge=0, le=64, description="Tokens drafted for each token that matches, at most"
    )
    min_token_prob: float = Field(
        default=0.1, ge=0, le=1, description="Stop where a token followed in a smaller part of the places"
    )


METHOD = Method(
    summary="drafts what most often followed the same tokens, in the text and in earlier answers",
    drafts_with="nothing",
    draft_passes="none",
    draft_lens=range(1, 65),
    default_draft_len=24,
    options=SuffixOptions,
    variants=lambda options: (
        {"max_spec_factor": factor, "min_token_prob": least} for factor in (0.5, 1.0, 2.0, 4.0) for least in (0.1, 0.3)
    ),
)
