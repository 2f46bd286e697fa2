# SPDX-License-Identifier: Apache-2.0
"""Prompt lookup in vLLM."""

from __future__ import annotations

from trtspec.backends.vllm.versions import VllmMethod
from trtspec.methods.ngram import NgramOptions


def _fields(options: NgramOptions) -> dict[str, int]:
    return {"prompt_lookup_min": options.min_match, "prompt_lookup_max": options.max_match}


METHOD = VllmMethod("ngram", _fields)
