# SPDX-License-Identifier: Apache-2.0
"""Prompt lookup: drafts the tokens that followed an earlier occurrence of the text's last tokens.

Prompt lookup decoding (Saxena 2023) is the NGram method of TensorRT-LLM. The longest match is used (Hu et al. 2024,
arXiv:2411.10666).
"""

from __future__ import annotations

from pydantic import Field, ValidationInfo, field_validator

from trtspec.methods.base import Method, Options, Suggestion
from trtspec.recipe.schema import refuse


class NgramOptions(Options):
    """Minimum and maximum length of a match, in tokens."""

    min_match: int = Field(
        default=2, ge=1, le=64, description="Minimum tokens of a match; shorter matches draft nothing"
    )
    max_match: int = Field(default=16, ge=1, le=64, validate_default=True, description="Maximum tokens of a match")

    @field_validator("max_match")
    @classmethod
    def _check_max_match(cls, max_match: int, info: ValidationInfo) -> int:
        least = info.data.get("min_match", 1)
        if max_match < least:
            raise refuse("out-of-range", f"max_match {max_match} is less than min_match {least}")
        return max_match


METHOD = Method(
    summary="drafts the tokens that followed the same tokens earlier in the text",
    drafts_with="nothing",
    draft_passes="none",
    draft_lens=range(1, 65),
    default_draft_len=8,
    options=NgramOptions,
    suggest=lambda source: Suggestion(1, "works without a draft; useful if texts repeat their prompt or themselves"),
    variants=lambda options: ({"min_match": least} for least in (1, 2, 3, 4) if least <= options.max_match),
)
