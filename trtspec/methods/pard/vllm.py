# SPDX-License-Identifier: Apache-2.0
"""PARD in vLLM: a draft model that drafts in parallel."""

from __future__ import annotations

from trtspec.backends.vllm.versions import VllmMethod

METHOD = VllmMethod("draft_model", in_parallel=True, fixed_length=True)
