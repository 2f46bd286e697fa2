# SPDX-License-Identifier: Apache-2.0
"""The table of methods and engines: it is README's, and it claims only what tests cover."""

from __future__ import annotations

import re
from pathlib import Path

from docs.site.reference import SUPPORT, support_page
from docs.site.support import (
    LEGEND,
    MODEL_LEGEND,
    evidence,
    model_classes,
    model_support,
    support_table,
    version_table,
)
from tests.backends.edge_llm.cases import METHODS as EDGE_LLM
from tests.backends.sglang.cases import CASES as SGLANG
from trtspec.backends.base import backends

ROOT = Path(__file__).parents[2]


def test_readme_has_the_support_table() -> None:
    readme = (ROOT / "README.md").read_text()
    assert support_table() in readme
    assert all(f"*{word}*: " in readme for word in LEGEND)


def test_support_claims_match_the_tested_methods() -> None:
    known = backends()
    assert known["sglang"].parses == {method for method, *_ in SGLANG.values()}
    assert known["edge_llm"].parses == {*EDGE_LLM}
    for backend in known.values():
        assert {*backend.runs, *backend.parses} <= {*backend.methods()}
        assert not backend.runs & backend.parses


def test_method_that_a_backend_lacks_has_no_evidence() -> None:
    known = backends()
    assert evidence(known["embedded"], "mtp") == ""
    assert evidence(known["embedded"], "swift") == "run"
    assert evidence(known["tensorrt_llm"], "medusa") == "planned"


def test_support_page_has_the_present_methods_versions_and_model_classes() -> None:
    page = SUPPORT.read_text(encoding="utf-8")
    assert page == support_page(), "to write it, run: python -m docs.site.reference"
    assert support_table() in page
    for name, backend in backends().items():
        assert f"`{name}`" in page
        assert all(f"`{version}`" in page for version in backend.versions() if version)
    for architecture in model_classes():
        cells = " | ".join(model_support(name, architecture) for name in sorted(backends()))
        (row,) = [line for line in page.splitlines() if line.startswith(f"| `{architecture}` |")]
        assert row.endswith(f"| {cells} |")
    assert all(f"* *{word}*: " in page for word in MODEL_LEGEND)


def test_every_known_version_has_a_source_and_most_a_date() -> None:
    versions = version_table()
    listed = {version for rows in versions.values() for version, *_ in rows}
    assert {version for each in backends().values() for version in each.versions() if version} <= listed
    for rows in versions.values():
        assert all(source for _, _, source in rows)
        dated = [released for _, released, _ in rows if released]
        assert all(re.fullmatch(r"202\d-\d\d-\d\d", released) for released in dated)
        assert len(dated) >= len(rows) - 1  # 1.0.3.2510 exists only in a container


def test_model_classes_are_those_that_engines_run() -> None:
    assert model_support("embedded", "LlamaForCausalLM") == "yes"
    assert model_support("embedded", "DeepseekV3ForCausalLM") == ""
    assert model_support("tensorrt_llm", "Olmo2ForCausalLM") == ""
    assert model_support("llmapi", "Qwen3ForCausalLM") == "yes"
    assert model_support("llmapi", "Gemma3ForCausalLM") == "no drafter"
    assert model_support("llmapi", "Olmo2ForCausalLM") == "not recorded"
    assert model_support("vllm", "MistralForCausalLM") == "yes"
    assert model_support("edge_llm", "Qwen3MoeForCausalLM") == "yes"
    assert model_support("edge_llm", "Gemma2ForCausalLM") == ""
