# SPDX-License-Identifier: Apache-2.0
"""Fixtures of TensorRT-LLM doubles."""

from __future__ import annotations

from tests.doubles.fixtures import trtllm  # noqa: F401
