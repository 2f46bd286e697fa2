# SPDX-License-Identifier: Apache-2.0
"""A draft model in SGLang."""

from __future__ import annotations

from collections.abc import Iterator

from trtspec.backends.common.checks import OPTIONS, unused
from trtspec.backends.context import PlanContext
from trtspec.backends.sglang.check import EAGLE_WORKER
from trtspec.backends.sglang.versions import SglangMethod
from trtspec.core.diagnostics import Diagnostic


def _check(context: PlanContext) -> Iterator[Diagnostic]:
    if "use_draft_logits" in context.recipe.speculation.options:
        message = "SGLang drafts and verifies greedily chosen tokens, without draft probabilities"
        yield unused(f"{OPTIONS}.use_draft_logits", message, EAGLE_WORKER)


METHOD = SglangMethod("STANDALONE", check=_check)
