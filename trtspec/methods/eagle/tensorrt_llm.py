# SPDX-License-Identifier: Apache-2.0
"""EAGLE-1 and EAGLE-2 in TensorRT engines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from trtspec.backends.context import PlanContext
from trtspec.backends.tensorrt_llm.rules import sources
from trtspec.backends.tensorrt_llm.specs import EAGLE, EngineMethod
from trtspec.core.diagnostics import Diagnostic
from trtspec.methods.eagle import EagleOptions


def _check(context: PlanContext) -> Iterator[Diagnostic]:
    """The Triton backend does not pass on the executor's option for dynamic trees."""
    if cast(EagleOptions, context.options).dynamic:
        message = "Triton cannot serve a dynamic tree (EAGLE-2): its backend passes on only eagle_choices"
        path, hint = "speculation.options.dynamic", "remove dynamic"
        yield Diagnostic(path, "not-supported", message, hint, source=sources.TRITON)


METHOD = EngineMethod(EAGLE, check=_check)
