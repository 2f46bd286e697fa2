# SPDX-License-Identifier: Apache-2.0
"""A draft model in vLLM."""

from __future__ import annotations

from collections.abc import Iterator

from trtspec.backends.common.checks import OPTIONS, unused
from trtspec.backends.context import PlanContext
from trtspec.backends.vllm.versions import VllmMethod, VllmRelease, cite
from trtspec.core.diagnostics import Diagnostic


def _check(context: PlanContext, release: VllmRelease) -> Iterator[Diagnostic]:
    speculation = context.recipe.speculation
    if "use_draft_logits" in speculation.options and speculation.verify != "block":
        message = "vLLM drafts and verifies greedily chosen tokens, without draft probabilities"
        yield unused(f"{OPTIONS}.use_draft_logits", message, f"{cite(release)}, draft_sample_method")


METHOD = VllmMethod("draft_model", maps_vocabularies=True, check=_check)
