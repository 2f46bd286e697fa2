# SPDX-License-Identifier: Apache-2.0
"""The environment of vLLM itself, imported once for all that a worker starts of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engines import make_forking

IMPORTED = ("vllm", "vllm.v1.engine.llm_engine", "vllm.v1.worker.cpu_worker")


@pytest.fixture(scope="session")
def vllm_environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where vLLM is found: its interpreter begins in a fork of one that has imported it."""
    return make_forking(tmp_path_factory.mktemp("forking") / "vllm", "vllm", *IMPORTED)
