# SPDX-License-Identifier: Apache-2.0
"""DSpark in vLLM."""

from __future__ import annotations

from trtspec.backends.vllm.versions import VllmMethod

METHOD = VllmMethod("dspark", fixed_length=True)
