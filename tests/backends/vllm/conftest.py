# SPDX-License-Identifier: Apache-2.0
"""The environment of the real vLLM, which is imported once for all its processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engines import make_forking

IMPORTED = ("vllm", "vllm.v1.engine.llm_engine", "vllm.v1.worker.cpu_worker")


@pytest.fixture(scope="session")
def vllm_environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment whose interpreter starts as a fork of a process that has imported vLLM."""
    return make_forking(tmp_path_factory.mktemp("forking") / "vllm", "vllm", *IMPORTED)
