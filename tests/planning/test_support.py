# SPDX-License-Identifier: Apache-2.0
"""The table of methods and engines: it is README's, and it claims only what tests cover."""

from __future__ import annotations

from pathlib import Path

from tests.backends.edge_llm.cases import METHODS as EDGE_LLM
from tests.backends.sglang.cases import CASES as SGLANG
from trtspec.backends.base import Backend, backends
from trtspec.core.registry import extension_names

ROOT = Path(__file__).parents[2]
LEGEND = {
    "run": "its text was compared on the real engine",
    "parsed": "the engine's own parser accepts its arguments",
    "planned": "built from upstream's documents; has not met the engine",
}


def evidence(backend: Backend, method: str) -> str:
    """Return a key of LEGEND, or "" if the backend does not support the method."""
    if method not in backend.methods():
        return ""
    return (
        "run" if backend.in_process or method in backend.runs else "parsed" if method in backend.parses else "planned"
    )


def support_table() -> str:
    """Return the Markdown table of methods and engines, without `none`."""
    known = dict(sorted(backends().items(), key=lambda item: (not item[1].in_process, item[0])))
    methods = [
        name for name in extension_names("trtspec.methods") if any(name in each.methods() for each in known.values())
    ]
    rows = [["method", *(f"`{name}`" for name in known)], ["---"] * (len(known) + 1)]
    for method in methods:
        if method != "none":
            rows.append([f"`{method}`", *(evidence(backend, method) for backend in known.values())])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


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
