# SPDX-License-Identifier: Apache-2.0
"""Lookahead decoding in TensorRT engines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from trtspec.backends.context import PlanContext
from trtspec.backends.tensorrt_llm.rules import sources
from trtspec.backends.tensorrt_llm.specs import LOOKAHEAD, EngineMethod
from trtspec.core.diagnostics import Diagnostic
from trtspec.methods.lookahead import LookaheadOptions


def _check(context: PlanContext) -> Iterator[Diagnostic]:
    """(1, 1, 0) disables lookahead, but an engine of that mode needs space for drafts."""
    options = cast(LookaheadOptions, context.options)
    sizes = (options.window, options.ngram, options.verification)
    if context.draft_shape.max_tokens == 0:
        message = f"window, ngram and verification {sizes} draft nothing, but a lookahead engine needs space for drafts"
        source = f"{sources.LOOKAHEAD_README}, triton-inference-server/tensorrtllm_backend#710"
        hint = "at least (2, 2, 1), or method: none"
        yield Diagnostic("speculation.options", "out-of-range", message, hint, source=source)
    elif any(size < least for size, least in zip(sizes, (2, 2, 1), strict=True)):
        message = f"window, ngram and verification {sizes} are below (2, 2, 1), the minimum for useful lookahead"
        yield Diagnostic("speculation.options", "out-of-range", message, None, "warning", sources.LOOKAHEAD_README)


METHOD = EngineMethod(LOOKAHEAD, check=_check)
