# SPDX-License-Identifier: Apache-2.0
"""The table of methods and engines: it is README's, and it claims only what tests cover."""

from __future__ import annotations

from pathlib import Path

from docs.site.support import LEGEND, evidence, support_table
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
