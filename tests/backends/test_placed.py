# SPDX-License-Identifier: Apache-2.0
"""Backends reject a device and a compute dtype that they do not support."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import Run


def test_a_warm_up_is_refused_where_the_engine_has_its_own_way(recipe: Path, trtspec: Run) -> None:
    asked = ("check", recipe, "--json", "--set", "serving.warmup=true", "--set")
    refused = trtspec(*asked, "engine.backend=vllm")
    [problem] = [each for each in refused.document["problems"] if each["severity"] == "error"]
    assert (refused.code, problem["path"], problem["code"]) == (1, "serving.warmup", "not-supported")
    assert "engine.backend: embedded or tensorrt_llm; deploy --wait-for-warmup" in problem["hint"]
    assert trtspec(*asked, "engine.backend=embedded").code == 0


@pytest.mark.parametrize(("key", "value"), [("engine.device", "cpu"), ("target.dtype", "float32")])
def test_a_backend_says_what_it_does_not_honour_and_which_does(
    key: str, value: str, recipe: Path, trtspec: Run
) -> None:
    refused = trtspec("check", recipe, "--set", f"{key}={value}", "--json")
    assert refused.code == 1
    [problem] = [each for each in refused.document["problems"] if each["severity"] == "error"]
    assert (problem["path"], problem["code"]) == (key, "not-supported")
    assert "set engine.backend: vllm" in problem["hint"]
    assert trtspec("check", recipe, "--set", f"{key}={value}", "--set", "engine.backend=vllm").code == 0
