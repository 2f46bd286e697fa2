# SPDX-License-Identifier: Apache-2.0
"""Prompt lookup with TensorRT engines, whose drafts come from outside like a draft model's."""

from __future__ import annotations

from trtspec.backends.tensorrt_llm.specs import EXTERNAL, EngineMethod

METHOD = EngineMethod(EXTERNAL)
