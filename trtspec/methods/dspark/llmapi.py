# SPDX-License-Identifier: Apache-2.0
"""DSpark in the LLM API, which drafts a net's whole block."""

from __future__ import annotations

from collections.abc import Iterator

from trtspec.backends.context import PlanContext
from trtspec.backends.llmapi.check import LLM_ARGS
from trtspec.backends.llmapi.methods import LlmApiMethod
from trtspec.core.diagnostics import Diagnostic
from trtspec.methods.dflash import block_size

SOURCE = f"{LLM_ARGS}, TorchLlmArgs.validate_speculative_config"


def _check(context: PlanContext) -> Iterator[Diagnostic]:
    block, depth = block_size(context.sources["draft"]), context.draft_shape.max_depth
    if block and depth != block:
        message = f"the LLM API drafts a DSpark net's whole block, {block} tokens, not {depth}"
        hint = f"set speculation.draft_len: {block}"
        yield Diagnostic("speculation.draft_len", "block-size", message, hint, source=SOURCE)


METHOD = LlmApiMethod(has_head=True, check=_check)
