# SPDX-License-Identifier: Apache-2.0
"""Medusa in TensorRT engines."""

from __future__ import annotations

from trtspec.backends.tensorrt_llm.specs import MEDUSA, EngineMethod

METHOD = EngineMethod(MEDUSA)
