# SPDX-License-Identifier: Apache-2.0
"""Suffix decoding in the LLM API, with its suffix automaton (SA)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from trtspec.backends.common.checks import OPTIONS, unused
from trtspec.backends.context import PlanContext
from trtspec.backends.llmapi.check import LLM_ARGS
from trtspec.backends.llmapi.methods import LlmApiMethod
from trtspec.core.diagnostics import Diagnostic
from trtspec.methods.suffix import SuffixOptions

SOURCE = f"{LLM_ARGS}, SADecodingConfig"
SLOTS = 1024


def _fields(context: PlanContext) -> dict[str, Any]:
    """Return the longest match, also in other responses unless the recipe disables it."""
    most = cast(SuffixOptions, context.options).max_cached_requests
    fields = {"max_matching_ngram_size": -1, "enable_global_pool": most > 0}
    if "max_cached_requests" in context.recipe.speculation.options and most:
        fields["global_pool_size"] = most
    return fields


def _check(context: PlanContext) -> Iterator[Diagnostic]:
    options = cast(SuffixOptions, context.options)
    for key in ("max_tree_depth", "max_spec_factor", "min_token_prob"):
        if key in context.recipe.speculation.options:
            message = f"the LLM API's suffix automaton does not support {key}: it drafts what follows the longest match"
            yield unused(f"{OPTIONS}.{key}", message, SOURCE)
    configured = context.recipe.speculation.options.get("max_cached_requests", 0)
    least = context.recipe.engine.max_batch_size
    if options.max_cached_requests and configured and not least <= options.max_cached_requests <= SLOTS:
        message = f"the LLM API caches {least} (max_batch_size) to {SLOTS} texts"
        hint = "remove it for the default size, or set 0 to match only within a text"
        path = f"{OPTIONS}.max_cached_requests"
        yield Diagnostic(path, "out-of-range", message, hint, source=SOURCE)


METHOD = LlmApiMethod(_fields, check=_check)
