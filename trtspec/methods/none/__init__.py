# SPDX-License-Identifier: Apache-2.0
"""No speculation: the target alone generates one token per step. All measurements use this method as their baseline."""

from __future__ import annotations

from trtspec.methods.base import Method

METHOD = Method(
    summary="the target alone",
    drafts_with="nothing",
    draft_passes="none",
)
