# SPDX-License-Identifier: Apache-2.0
"""Lookahead decoding: the target generates n-grams ahead of its text and verifies those that start with its last token.

Fu et al. 2024, arXiv:2402.02057. Options, bounds and sizes match TensorRT-LLM's lookahead_decoding, which calls them
max_window_size, max_ngram_size and max_verification_set_size (W, N and G).
"""

from __future__ import annotations

from pydantic import Field, ValidationInfo, field_validator

from trtspec.methods.base import DraftShape, Method, Options, Suggestion
from trtspec.recipe.schema import refuse


class LookaheadOptions(Options):
    """Sizes of the window, the verification set and the n-grams; (1, 0, 1) disables lookahead."""

    window: int = Field(default=4, ge=1, le=128, description="Positions ahead at which n-grams are generated each step")
    verification: int = Field(default=4, ge=0, le=128, description="N-grams verified each step")
    ngram: int = Field(default=3, ge=1, le=32, description="Tokens of an n-gram, and maximum tokens per step")

    @field_validator("ngram")
    @classmethod
    def _check_ngram(cls, ngram: int, info: ValidationInfo) -> int:
        off = {"window": 1, "verification": 0}
        if ngram == 1 and any(info.data.get(key, value) != value for key, value in off.items()):
            message = "ngram 1 turns lookahead off and requires window 1 and verification 0"
            raise refuse("out-of-range", message)
        return ngram


def _draft_shape(options: LookaheadOptions, draft_len: int) -> DraftShape:
    """Return the draft shape for which TensorRT-LLM reserves memory.

    It has ngram - 1 levels. `max_tokens` counts the window without the text's last token, and the n-grams to verify.
    """
    window, ngram, guesses = options.window, options.ngram, options.verification
    return DraftShape(ngram - 1, max(0, ngram - 2) + (window - 1 + guesses) * (ngram - 1))


METHOD = Method(
    summary="the target generates and verifies n-grams ahead of its text",
    drafts_with="nothing",
    draft_passes="none",
    options=LookaheadOptions,
    suggest=lambda source: Suggestion(2, "works without a draft; useful if the target has spare compute in each step"),
    variants=lambda options: (
        {"window": window, "verification": window, "ngram": ngram} for window in (2, 4, 8, 15) for ngram in (2, 3, 5)
    ),
    draft_shape=_draft_shape,
)
