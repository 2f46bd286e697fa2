# SPDX-License-Identifier: Apache-2.0
"""A draft model with an engine of its own."""

from __future__ import annotations

from trtspec.backends.tensorrt_llm.specs import EXTERNAL, EngineMethod

METHOD = EngineMethod(EXTERNAL, uses_draft_logits=lambda options: bool(options.use_draft_logits))
