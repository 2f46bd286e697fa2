# SPDX-License-Identifier: Apache-2.0
"""Responses of untrusted servers are limited in time and size."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.report.advisor.serving import serving
from trtspec.core.errors import DeployError, StepTimeout, TrtspecError
from trtspec.core.prometheus_text import parse_metrics
from trtspec.report.monitoring import prometheus as fetching
from trtspec.report.monitoring.prometheus import Prometheus, fetch


def test_fetch_returns_the_response_body() -> None:
    with serving(lambda path: (200, f"said of {path}".encode())) as url:
        assert fetch(f"{url}/metrics?a=1") == b"said of /metrics?a=1"
        assert fetch(url) == b"said of /"


@pytest.mark.parametrize("status", [302, 404, 500])
def test_fetch_rejects_error_and_redirect_statuses(status: int) -> None:
    with (
        serving(lambda path: (status, b"no")) as url,
        pytest.raises(DeployError, match=f"returned status {status}: 'no'"),
    ):
        fetch(url)


def test_fetch_rejects_a_response_above_the_size_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "MAX_BYTES", 1000)
    with serving(lambda path: (200, b"x" * 1001)) as url, pytest.raises(DeployError, match="exceeds 1,000 bytes"):
        fetch(url)


@contextmanager
def dripping() -> Iterator[str]:
    """Serve an endless response, one byte every few milliseconds."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(10)

        def drip() -> None:
            peer, _ = server.accept()
            with peer:
                peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
                try:
                    for _ in range(1000):
                        peer.sendall(b"x")
                        time.sleep(0.005)
                except OSError:
                    pass

        thread = Thread(target=drip, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        thread.join(10)


@pytest.mark.slow
def test_slowly_dripping_response_times_out() -> None:
    started = time.monotonic()
    with dripping() as url, pytest.raises(StepTimeout, match=r"no response within 0\.2 s"):
        fetch(url, timeout_s=0.2)
    assert time.monotonic() - started < 5


@pytest.mark.parametrize(
    "url",
    [
        "",
        "x",
        "file:///etc/passwd",
        "ftp://a/b",
        "http://",
        "http://a b/",
        "http://a\n/",
        "http://a:99999999/",
        "http://[::1/",
    ],
)
def test_invalid_url_is_rejected(url: str) -> None:
    with pytest.raises(DeployError, match="is not an http"):
        fetch(url)


NAMES = st.from_regex(r"[a-zA-Z_:][a-zA-Z0-9_:]*", fullmatch=True)
LABELS = st.dictionaries(st.from_regex(r"[a-zA-Z_][a-zA-Z0-9_]*", fullmatch=True), st.text(max_size=20), max_size=3)


def escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


@pytest.mark.slow
@settings(deadline=None)
@given(st.lists(st.tuples(NAMES, LABELS, st.floats(allow_nan=False, allow_infinity=False)), max_size=5))
def test_parsed_samples_match_the_written_ones(samples: list[tuple[str, dict[str, str], float]]) -> None:
    lines = []
    for name, labels, value in samples:
        inside = ",".join(f'{key}="{escaped(each)}"' for key, each in labels.items())
        lines.append(f"{name}{{{inside}}} {value!r}" if labels else f"{name} {value!r} 1395066363000")
    text = "# HELP a b\n# TYPE a counter\n" + "\n".join(lines)
    found = parse_metrics(text.encode())
    assert sorted(found) == sorted({name for name, _, _ in samples})
    for name, each in found.items():
        assert [(dict(one.labels), one.value) for one in each] == [
            (labels, value) for other, labels, value in samples if other == name
        ]


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_arbitrary_bytes_can_be_parsed(data: bytes) -> None:
    parse_metrics(data)


def test_only_finite_numbers_are_samples() -> None:
    assert parse_metrics(b"a NaN\nb +Inf\nc x\nd 1 2 3\ne{ 1\nf 1e3\n") == {"f": [({}, 1000.0)]}


def answered(document: Any) -> Prometheus:
    return Prometheus("http://here", lambda url: json.dumps(document).encode())


@pytest.mark.parametrize(
    "result", [[], None, "x", [{}], [{"value": []}], [{"value": [0, "NaN"]}], [{"value": [0, "x"]}], {"a": 1}, [[1]]]
)
def test_result_without_a_number_is_none(result: Any) -> None:
    assert answered({"status": "success", "data": {"result": result}}).value("up") is None


def test_prometheus_value_and_alerts_are_parsed() -> None:
    assert answered({"status": "success", "data": {"result": [{"metric": {}, "value": [0, "2.5"]}]}}).value("up") == 2.5
    groups = [{"rules": [{"type": "alerting", "name": "A"}, {"type": "recording", "name": "r"}, 3]}, {"rules": None}, 1]
    assert answered({"status": "success", "data": {"groups": groups}}).alerts() == {"A"}


@pytest.mark.parametrize(
    "document", [[], 1, {}, {"status": "error", "error": "bad"}, {"status": "success", "data": []}]
)
def test_invalid_prometheus_response_is_an_error_with_its_url(document: Any) -> None:
    with pytest.raises(TrtspecError) as refused:
        answered(document).value("up")
    assert refused.value.where == "http://here/api/v1/query"
