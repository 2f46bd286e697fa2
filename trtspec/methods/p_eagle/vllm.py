# SPDX-License-Identifier: Apache-2.0
"""P-EAGLE in vLLM: an EAGLE-3 head that drafts in parallel."""

from __future__ import annotations

from trtspec.backends.vllm.versions import VllmMethod

METHOD = VllmMethod("eagle3", in_parallel=True, fixed_length=True)
