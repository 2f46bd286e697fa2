# SPDX-License-Identifier: Apache-2.0
"""`serving.structured_output` is an error on backends without grammars."""

from __future__ import annotations

import pytest

from trtspec.backends.base import backends
from trtspec.backends.common.checks import check_structured_output
from trtspec.recipe.schema import Recipe

RECIPE = {"schema": "trtspec.recipe/1", "name": "tiny", "target": {"model": "./target"}}


@pytest.mark.parametrize("name", list(backends()))
def test_structured_output_is_rejected_only_where_no_engine_has_grammars(name: str) -> None:
    backend = backends()[name]
    recipe = Recipe.model_validate({**RECIPE, "serving": {"structured_output": True}})
    found = list(check_structured_output(recipe, backend))
    assert [each.severity for each in found] == ["error"] * (name == "tensorrt_llm")
    for each in found:
        assert each.hint == "remove it, or set engine.backend: edge_llm or embedded or llmapi or sglang or vllm"
    assert list(check_structured_output(Recipe.model_validate(RECIPE), backend)) == []
