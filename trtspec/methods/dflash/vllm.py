# SPDX-License-Identifier: Apache-2.0
"""DFlash in vLLM."""

from __future__ import annotations

from trtspec.backends.vllm.versions import VllmMethod

METHOD = VllmMethod("dflash", fixed_length=True)
