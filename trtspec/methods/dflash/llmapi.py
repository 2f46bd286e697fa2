# SPDX-License-Identifier: Apache-2.0
"""DFlash in the LLM API, which has no class for its variants."""

from __future__ import annotations

from collections.abc import Iterator

from trtspec.backends.common.checks import DRAFT
from trtspec.backends.context import PlanContext
from trtspec.backends.llmapi.methods import LlmApiMethod
from trtspec.core.diagnostics import Diagnostic
from trtspec.methods.dflash import find_variant

SOURCE = "vllm-project/speculators:src/speculators/models@v0.9.0"


def _check(context: PlanContext) -> Iterator[Diagnostic]:
    if found := find_variant(context.sources["draft"]):
        message = f"the drafter is {found.net}, whose {found.more} the LLM API's DFlash does not compute"
        hint = f"use a DFlash net, or another backend: {found.engines} run it"
        yield Diagnostic(DRAFT, "class", message, hint, source=SOURCE)


METHOD = LlmApiMethod(has_head=True, check=_check)
