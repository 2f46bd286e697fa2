# SPDX-License-Identifier: Apache-2.0
"""TensorRT-LLM as tests have it."""

from __future__ import annotations

from tests.doubles.fixtures import trtllm  # noqa: F401
