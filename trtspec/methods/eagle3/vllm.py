# SPDX-License-Identifier: Apache-2.0
"""EAGLE-3 in vLLM."""

from __future__ import annotations

from trtspec.backends.vllm.versions import VllmMethod

METHOD = VllmMethod("eagle3")
