# SPDX-License-Identifier: Apache-2.0
"""The warm-up wait reports which endpoint served no text, and why, in time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from tests.conftest import Run
from trtspec.core.errors import SmokeTestFailed, StepTimeout
from trtspec.deployment.gateway import wait_for_first_response
from trtspec.deployment.journal import DeploymentRecord

TRITON, OPENAI = b'{"text_output": "x"}', b'{"choices": [{"text": "x"}]}'


@contextmanager
def answering(status: int, body: bytes, after_s: float = 0.0) -> Iterator[tuple[int, list[str]]]:
    """Answer every POST like this; yield the port and the Authorization header of each request."""
    keys: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            keys.append(self.headers.get("Authorization", ""))
            time.sleep(after_s)
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            with suppress(BrokenPipeError, ConnectionResetError):  # the client disconnected
                self.wfile.write(body)

        def log_message(self, *said: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_port, keys
    finally:
        server.shutdown()
        server.server_close()


def wait(root: Path, triton: int, openai: int, seconds: float = 10.0) -> list[str]:
    record = DeploymentRecord("tiny", "smoke", "/made", 1, 1, triton, 0, 0, "", detached=False, openai=openai)
    return wait_for_first_response(record, root, time.monotonic() + seconds, lambda: "the log")


@pytest.mark.slow
def test_each_endpoint_is_warmed_up_with_a_key_if_required(tmp_path: Path) -> None:
    (tmp_path / "openai.keys").write_text("first\nsecond")
    with answering(200, TRITON) as (triton, _), answering(200, OPENAI) as (openai, keys):
        assert wait(tmp_path, triton, openai) == ["Triton", "OpenAI"]
        assert keys == ["Bearer first"]
        assert wait(tmp_path, triton, 0) == ["Triton"], "without an OpenAI gateway"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (503, b'{"error": "full"}', 'the gateway answered 503: {"error": "full"}'),
        (200, b"<html>", "the gateway returned no text"),
        (200, b'{"choices": []}', "the gateway returned no text"),
    ],
)
def test_endpoint_that_returns_no_text_is_named_in_the_error(
    status: int, body: bytes, said: str, tmp_path: Path
) -> None:
    with (
        answering(200, TRITON) as (triton, _),
        answering(status, body) as (openai, _),
        pytest.raises(SmokeTestFailed, match="the first text from the OpenAI endpoint failed: ") as caught,
    ):
        wait(tmp_path, triton, openai)
    assert said in caught.value.message
    assert caught.value.hint == "the log"


@pytest.mark.parametrize("slow", ["Triton", "OpenAI"])
def test_endpoint_that_is_too_slow_is_named_in_the_error(slow: str, tmp_path: Path) -> None:
    triton_s, openai_s = (1.0 if entry == slow else 0.0 for entry in ("Triton", "OpenAI"))
    with (
        answering(200, TRITON, triton_s) as (triton, _),
        answering(200, OPENAI, openai_s) as (openai, _),
        pytest.raises(StepTimeout, match=f"no first text from the {slow} endpoint in time: no answer within "),
    ):
        wait(tmp_path, triton, openai, 0.4)


@pytest.mark.slow
def test_wait_for_warmup_is_supported_by_systemd_but_not_docker(artifact: Path, trtspec: Run) -> None:
    assert "--wait-for-warmup" in trtspec("deploy", artifact, "--systemd", "--wait-for-warmup").out
    refused = trtspec("deploy", artifact, "--target", "docker", "--wait-for-warmup")
    assert refused.code == 1
    assert "target docker does not support --wait-for-warmup" in refused.err
