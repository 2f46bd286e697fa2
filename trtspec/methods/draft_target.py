# SPDX-License-Identifier: Apache-2.0
"""A smaller model of the same vocabulary drafts a chain of tokens that the target verifies in one step.

Leviathan et al. 2023, arXiv:2211.17192; Chen et al. 2023, arXiv:2302.01318.
"""

from __future__ import annotations

from trtspec.methods.base import Method

METHOD = Method(
    summary="a smaller model drafts, the target verifies",
    drafts_with="model",
    draft_lens=range(1, 65),
    default_draft_len=5,
    options=(),
    engines=("embedded",),
)
