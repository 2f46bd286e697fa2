# SPDX-License-Identifier: Apache-2.0
"""The facts of versions.yaml match the wheels in the directory $VLLM_WHEELS."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks.upstream.strict import problems
from benchmarks.upstream.tables import spans
from benchmarks.upstream.vllm import read, schema
from benchmarks.upstream.wheel import open_local
from tests.backends.source_contexts import source_context
from trtspec.backends.vllm.arguments import model_json
from trtspec.backends.vllm.versions import FACTS, releases

WHEELS = sorted(Path(folder).glob("vllm*.whl")) if (folder := os.environ.get("VLLM_WHEELS")) else []
NONE = [pytest.param(None, marks=pytest.mark.skip(reason="no wheels: set VLLM_WHEELS"))]


def some() -> list[Path]:
    return WHEELS or NONE


@pytest.mark.slow
@pytest.mark.parametrize("path", some(), ids=lambda path: path and path.name.split("-")[1])
def test_release_facts_match_its_wheel(path: Path) -> None:
    wheel = open_local(path)
    known, found = releases()[wheel.version], read(wheel)
    assert {fact: set(getattr(known, fact)) for fact in FACTS} == found


@pytest.mark.parametrize("path", some(), ids=lambda path: path and path.name.split("-")[1])
def test_emitted_arguments_exist_in_the_release(path: Path) -> None:
    wheel = open_local(path)
    asked = source_context(
        "vllm", wheel.version, "draft_target", target__quantization={"weights": "fp8", "kv_cache": "fp8"}
    )
    assert problems(model_json(asked, "./target", "./draft"), schema(wheel)) == []


def test_fact_names_are_grouped_by_release_range() -> None:
    facts = {version: {"does": names} for version, names in {"0.9.0": {"a", "b"}, "0.10.0": {"a", "c"}}.items()}
    assert spans(facts, "does") == {"0.9.0..": ["a"], "0.9.0..0.9.0": ["b"], "0.10.0..": ["c"]}
    facts["0.11.0"] = {"does": {"b"}}
    with pytest.raises(ValueError, match="b comes and goes"):
        spans(facts, "does")
