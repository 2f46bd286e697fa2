# SPDX-License-Identifier: Apache-2.0
"""No speculation: the target alone, one token per step. This is the baseline of all measurements."""

from __future__ import annotations

from trtspec.methods.base import Method

METHOD = Method(
    summary="the target alone",
    drafts_with="nothing",
    draft_passes="none",
)
