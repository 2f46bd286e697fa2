# SPDX-License-Identifier: Apache-2.0
"""DFlash in the LLM API."""

from __future__ import annotations

from collections.abc import Iterator

from trtspec.backends.common.checks import DRAFT
from trtspec.backends.context import PlanContext
from trtspec.backends.llmapi.methods import LlmApiMethod
from trtspec.core.diagnostics import Diagnostic
from trtspec.methods.dflash import is_dflash2

SOURCE = "vllm-project/speculators:src/speculators/models/dflash2/core.py@v0.9.0"


def _check(context: PlanContext) -> Iterator[Diagnostic]:
    if is_dflash2(context.sources["draft"]):
        message = "the drafter is a DFlash2 net, whose convolutions and selector the LLM API's DFlash does not compute"
        hint = "use a DFlash net, or a backend with a class for DFlash2 (docs/methods.md)"
        yield Diagnostic(DRAFT, "class", message, hint, source=SOURCE)


METHOD = LlmApiMethod(has_head=True, check=_check)
