# SPDX-License-Identifier: Apache-2.0
"""RoPE keys of transformers 5 cause a warning if the release includes transformers 4."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.backends.contexts import make_context
from trtspec.backends.llmapi.check import check

SECTION = {"rope_type": "default", "rope_theta": 5e5}


@pytest.mark.parametrize(
    ("version", "config", "is_told"),
    [
        ("1.2.1", {"rope_parameters": SECTION}, True),
        ("1.3.0", {"rope_parameters": SECTION}, False),
        ("1.2.1", {"rope_parameters": SECTION, "rope_theta": 5e5}, False),
        ("1.2.1", {"rope_parameters": {**SECTION, "rope_theta": 10000.0}}, False),
    ],
)
def test_rope_section_unsupported_by_transformers_4_is_reported(
    version: str, config: dict[str, Any], is_told: bool
) -> None:
    case = make_context("llama-3.2-1b", version=version, engine__backend="llmapi")
    source = case.sources["target"]
    kept = {key: value for key, value in source.config.items() if not key.startswith("rope")}
    case = replace(case, sources={**case.sources, "target": replace(source, config=kept | config)})
    found = [each for each in check(case) if each.code == "rope" and "transformers 4" in each.message]
    assert len(found) == is_told
