# SPDX-License-Identifier: Apache-2.0
"""Backends reject a device and a compute dtype that they do not support."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import Run


def test_warm_up_is_rejected_by_a_backend_without_support(recipe: Path, trtspec: Run) -> None:
    asked = ("check", recipe, "--json", "--set", "serving.warmup=true", "--set")
    refused = trtspec(*asked, "engine.backend=vllm")
    [problem] = [each for each in refused.document["problems"] if each["severity"] == "error"]
    assert (refused.code, problem["path"], problem["code"]) == (1, "serving.warmup", "not-supported")
    assert "engine.backend: embedded or tensorrt_llm; deploy --wait-for-warmup" in problem["hint"]
    assert trtspec(*asked, "engine.backend=embedded").code == 0


@pytest.mark.parametrize(("key", "value"), [("engine.device", "cpu"), ("target.dtype", "float32")])
def test_unsupported_key_is_rejected_with_a_supporting_backend(
    key: str, value: str, recipe: Path, trtspec: Run
) -> None:
    refused = trtspec("check", recipe, "--set", f"{key}={value}", "--json")
    assert refused.code == 1
    [problem] = [each for each in refused.document["problems"] if each["severity"] == "error"]
    assert (problem["path"], problem["code"]) == (key, "not-supported")
    assert "set engine.backend: vllm" in problem["hint"]
    assert trtspec("check", recipe, "--set", f"{key}={value}", "--set", "engine.backend=vllm").code == 0
