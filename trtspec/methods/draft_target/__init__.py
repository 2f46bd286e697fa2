# SPDX-License-Identifier: Apache-2.0
"""Draft-target: a smaller model with the same vocabulary drafts a chain that the target verifies in one step.

Leviathan et al. 2023, arXiv:2211.17192; Chen et al. 2023, arXiv:2302.01318.
"""

from __future__ import annotations

from pydantic import Field

from trtspec.methods.base import Method, Options, Suggestion


class DraftTargetOptions(Options):
    """Options of the draft model.

    Without `use_draft_logits`, engines accept a draft token only if it is the token that the target samples.
    """

    stop_below: float = Field(
        default=0.0, ge=0, lt=1, description="Stop drafting when the draft's highest probability is below this value"
    )
    use_draft_logits: bool = Field(
        default=True, description="Verify with the draft's probabilities, not only with its tokens"
    )


METHOD = Method(
    summary="a smaller model drafts, the target verifies",
    drafts_with="model",
    has_confidence=True,
    draft_lens=range(1, 65),
    default_draft_len=5,
    options=DraftTargetOptions,
    suggest=lambda source: Suggestion(9, "DRAFT is not a draft head, so it is treated as a model"),
    variants=lambda options: ({"stop_below": probability} for probability in (0.0, 0.2, 0.4, 0.6)),
)
