# SPDX-License-Identifier: Apache-2.0
"""A draft model with an engine of its own."""

from __future__ import annotations

from trtspec.backends.tensorrt_llm.specs import EXTERNAL, EngineMethod
from trtspec.methods.draft_target import DraftTargetOptions


def _uses_draft_logits(options: DraftTargetOptions) -> bool:
    return options.use_draft_logits


METHOD = EngineMethod(EXTERNAL, uses_draft_logits=_uses_draft_logits)
