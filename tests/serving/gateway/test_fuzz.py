# SPDX-License-Identifier: Apache-2.0
"""Malformed requests by schemathesis, from the entry's own OpenAPI document, at the entry before a real tritonserver.

TRTSPEC_FUZZ_EXAMPLES says how many are made for each endpoint, `make openai-fuzz` makes 5,000 in all.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.serving.gateway.running import Running
from trtspec.serving.gateway.parameters import CHAT, COMPLETION, NEUTRAL

pytestmark = [pytest.mark.triton, pytest.mark.slow]

EXAMPLES = int(os.environ.get("TRTSPEC_FUZZ_EXAMPLES", "60"))
PATHS = ["/v1/completions", "/v1/chat/completions"]
PATH = re.compile(r"/(?:home|root|tmp|work|usr|opt|srv|var)/|site-packages|Traceback|\.py\b")
GENTLY = settings(
    max_examples=EXAMPLES,
    deadline=None,
    database=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


def check(answer: Any, sent: Any) -> None:
    """Fail for an answer that shows a fault of the server or the inside of it."""
    assert answer.status_code < 500, (answer.status_code, answer.text, sent)
    assert not PATH.search(answer.text.replace(json.dumps(sent, default=str), "")), answer.text
    if answer.status_code >= 400:
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("mode", ["POSITIVE", "NEGATIVE"])
def test_no_request_by_the_schema_or_against_it_is_a_fault(path: str, mode: str, entry: Running) -> None:
    schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed: make setup")
    schema = schemathesis.openapi.from_url(f"{entry.url}/openapi.json")
    operation = schema[path]["POST"]
    wanted = schemathesis.GenerationMode[mode]

    @GENTLY
    @given(case=operation.as_strategy(generation_mode=wanted))
    def ask(case: Any) -> None:
        if _is_long(case.body):
            case.body["max_tokens"] = 2
        check(case.call(timeout=30), case.body)

    ask()


def _is_long(body: Any) -> bool:
    """Tell requests that would be served at length, which only takes time, from those that are to be refused."""
    if not isinstance(body, dict):
        return False
    asked = body.get("max_tokens")
    return asked is None or (type(asked) is int and asked > 2)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=8,
)
NAMES = st.sampled_from(sorted({*CHAT, *COMPLETION, *NEUTRAL, "prompt", "messages", "stop", "stream_options"}))


@pytest.mark.parametrize("path", PATHS)
def test_no_value_of_any_parameter_is_a_fault(path: str, entry: Running) -> None:
    import requests

    text = {"messages": [{"role": "user", "content": "x"}]} if "chat" in path else {"prompt": "x"}
    session = requests.Session()

    @GENTLY
    @given(changes=st.dictionaries(NAMES, JSON, max_size=3), raw=st.none() | st.binary(max_size=40))
    def ask(changes: dict[str, Any], raw: bytes | None) -> None:
        body = json.dumps({"model": "quickstart", **text, "max_tokens": 2, **changes}).encode()
        sent = body if raw is None else body[: len(raw)] + raw
        headers = {"Content-Type": "application/json"}
        check(session.post(entry.url + path, data=sent, headers=headers, timeout=30), sent.decode(errors="replace"))

    ask()


def test_the_document_says_what_is_served(entry: Running, quickstart: Path) -> None:
    document = entry.get("/openapi.json").json()
    for path in document["paths"]:
        if "{" not in path and path not in PATHS:
            assert entry.get(path).status_code == 200
    assert document["paths"]["/v1/completions"]["post"]["requestBody"]["content"].keys() == {"application/json"}
