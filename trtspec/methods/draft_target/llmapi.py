# SPDX-License-Identifier: Apache-2.0
"""A draft model in the LLM API."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from trtspec.backends.common.checks import OPTIONS
from trtspec.backends.context import PlanContext
from trtspec.backends.llmapi.arguments import REJECTION, verifies_with_logits
from trtspec.backends.llmapi.check import LLM_ARGS
from trtspec.backends.llmapi.methods import LlmApiMethod
from trtspec.core.diagnostics import Diagnostic
from trtspec.methods.draft_target import DraftTargetOptions


def _fields(context: PlanContext) -> dict[str, Any]:
    options = cast(DraftTargetOptions, context.options)
    is_set = "use_draft_logits" in context.recipe.speculation.options
    return {REJECTION: options.use_draft_logits} if is_set and verifies_with_logits(context) else {}


def _check(context: PlanContext) -> Iterator[Diagnostic]:
    if not cast(DraftTargetOptions, context.options).use_draft_logits and not verifies_with_logits(context):
        message = "the LLM API decides itself whether drafts are verified with their logits"
        yield Diagnostic(f"{OPTIONS}.use_draft_logits", "not-supported", message, "remove it", source=LLM_ARGS)


METHOD = LlmApiMethod(_fields, check=_check)
