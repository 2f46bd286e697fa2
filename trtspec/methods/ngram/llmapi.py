# SPDX-License-Identifier: Apache-2.0
"""Prompt lookup in the LLM API."""

from __future__ import annotations

from typing import Any, cast

from trtspec.backends.context import PlanContext
from trtspec.backends.llmapi.methods import LlmApiMethod
from trtspec.methods.ngram import NgramOptions


def _fields(context: PlanContext) -> dict[str, Any]:
    # a separate pool for each request, so that a text's repetitions are not drafted for another request
    most = cast(NgramOptions, context.options).max_match
    return {"max_matching_ngram_size": most, "is_public_pool": False}


METHOD = LlmApiMethod(_fields, samples=True)
