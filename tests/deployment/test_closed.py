# SPDX-License-Identifier: Apache-2.0
"""Requests rejected by a deployed server, and permissions of its files: attacks on a real server."""

from __future__ import annotations

import base64
import gzip
import json
import os
import re
import socket
from collections.abc import Iterator
from contextlib import suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

import numpy
import pytest

from tests._support.deployed import deploy_local
from tests.serving.triton.artifact import make_echo_artifact
from trtspec.core.errors import DeployError
from trtspec.core.http import UNIX, UnixConnection
from trtspec.core.processes import session_processes, wait_until
from trtspec.deployment.journal import DeploymentJournal
from trtspec.deployment.options import DeployOptions
from trtspec.deployment.revision import read_token, server_url
from trtspec.deployment.targets.local import LocalDeployment, stop
from trtspec.serving.triton.client import HEADER, Client
from trtspec.serving.triton.server import SHARED_MEMORY, find_server

pytestmark = pytest.mark.triton

SECRETS = {
    "HF_TOKEN": "hf_secret",
    "AWS_SESSION_TOKEN": "aws",
    "DB_PASSWORD": "db",
    "HTTPS_PROXY": "http://u:pw@proxy:1",
}
GENERATE = "/v2/models/ensemble/generate"
EVIL = b"open(PLACE, 'w').write('run')\nclass TritonPythonModel:\n    def execute(self, requests):\n        return []\n"
EVIL_CONFIG = {"backend": "python", "input": [], "output": [{"name": "o", "data_type": "TYPE_INT32", "dims": [1]}]}


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalDeployment]:
    """A server deployed by a user with an open umask and secrets in the environment, replacing another one."""
    root = tmp_path_factory.mktemp("closed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRTSPEC_STATE", str(root / "state"))
        for name, value in SECRETS.items():
            patch.setenv(name, value)
        patch.setenv("TRTSPEC_PASS_ENV", "NPM_TOKEN")
        patch.setenv("NPM_TOKEN", "passed on")
        try:
            find_server()
        except DeployError as error:
            pytest.skip(str(error))
        journal = DeploymentJournal("echo")
        journal.root.mkdir(parents=True, mode=0o755)
        journal.log.write_text("what the server before said\n")
        before = os.umask(0o022)
        try:
            yield deploy_local(make_echo_artifact(root / "echo"), DeployOptions(timeout_s=60))
        finally:
            os.umask(before)
            stop("echo", timeout_s=0)


@pytest.fixture
def token(deployment: LocalDeployment) -> str:
    return read_token(deployment.journal.root)


def asked(deployment: LocalDeployment, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, str]:
    connection = HTTPConnection("127.0.0.1", deployment.record.http, timeout=10)
    connection.request(method, path, None if body is None else json.dumps(body), headers)
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def stubs(deployment: LocalDeployment) -> list[int]:
    return session_processes(deployment.record.pid, deployment.record.started)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v2/repository/index"),
        ("POST", "/v2/repository/models/ensemble/unload"),
        ("POST", "/v2/logging"),
        ("GET", "/v2/logging"),
        ("POST", "/v2/trace/setting"),
        ("POST", "/v2/models/ensemble/trace/setting"),
        ("GET", "/v2/systemsharedmemory/status"),
        ("POST", "/v2/systemsharedmemory/region/x/register"),
        ("POST", "/v2/systemsharedmemory/region/x/unregister"),
        ("POST", "/v2/cudasharedmemory/region/x/register"),
    ],
)
def test_http_control_api_requires_the_token(method: str, path: str, deployment: LocalDeployment) -> None:
    assert asked(deployment, method, path, {})[0] == 403


def test_grpc_control_api_requires_the_token(deployment: LocalDeployment, token: str) -> None:
    grpc = pytest.importorskip("tritonclient.grpc", reason="tritonclient[grpc] is not installed")
    region = next(SHARED_MEMORY.glob(f"{deployment.record.shm_prefix}*")).name
    with grpc.InferenceServerClient(deployment.record.endpoints["grpc"]) as client:
        attacks = (
            lambda **more: client.unload_model("ensemble", **more),
            lambda **more: client.load_model("ensemble", config="{}", **more),
            lambda **more: client.update_log_settings({"log_file": "/tmp/x"}, **more),
            lambda **more: client.update_trace_settings(settings={"trace_file": "/tmp/x"}, **more),
            lambda **more: client.register_system_shared_memory("x", region, 64, **more),
            lambda **more: client.register_cuda_shared_memory("x", b"", 0, 64, **more),
            client.get_model_repository_index,
        )
        for attack in attacks:
            with pytest.raises(grpc.InferenceServerException, match="This protocol is restricted"):
                attack()
        assert client.get_model_repository_index({f"triton-grpc-protocol-{HEADER}": token}).models
        assert client.is_model_ready("ensemble")
        assert client.get_inference_statistics("ensemble")


def test_inference_and_metadata_endpoints_are_open_without_token(deployment: LocalDeployment) -> None:
    for path in ("/v2", "/v2/health/ready", "/v2/models/ensemble", "/v2/models/ensemble/config", "/v2/models/stats"):
        assert asked(deployment, "GET", path)[0] == 200
    assert asked(deployment, "POST", "/v2/models/ensemble/generate", {"text_input": "x", "max_tokens": 1})[0] == 200


def test_token_is_only_in_its_file_not_in_command_lines_or_environments(
    deployment: LocalDeployment, token: str
) -> None:
    assert len(token) == 64
    for pid in stubs(deployment):
        assert token not in Path(f"/proc/{pid}/cmdline").read_text()
        assert token not in Path(f"/proc/{pid}/environ").read_text()
    root = deployment.journal.root
    holders = [path.name for path in root.rglob("*") if path.is_file() and token in path.read_text(errors="replace")]
    assert holders == ["token"]


def test_files_and_shared_memory_are_private_to_the_user(deployment: LocalDeployment) -> None:
    root = deployment.journal.root
    regions = [*SHARED_MEMORY.glob(f"{deployment.record.shm_prefix}*")]
    assert root.stat().st_mode & 0o777 == 0o700, "everything below is private, including the served artifact"
    for path in (root / "token", root / "server.log", *regions):
        assert path.stat().st_mode & 0o777 == 0o600, path
    assert regions


def test_server_and_stub_environments_contain_no_secrets(deployment: LocalDeployment) -> None:
    assert len(stubs(deployment)) >= 2
    for pid in stubs(deployment):
        environment = Path(f"/proc/{pid}/environ").read_text()
        assert not [name for name in SECRETS if f"{name}=" in environment]
        assert "NPM_TOKEN=passed on" in environment
        assert "PATH=" in environment


def test_previous_server_log_is_retained(deployment: LocalDeployment) -> None:
    assert (deployment.journal.root / "server.log.1").read_text() == "what the server before said\n"
    assert "echo starts" in deployment.journal.log.read_text()


def form(size: int) -> bytes:
    return b"a=" + b"b" * size


def post(body: bytes, kind: str = "application/json", path: str = GENERATE, more: str = "") -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\n{more}"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


CHUNKS = f"POST {GENERATE} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
ATTACKS = {
    "a form": post(form(4 << 20), "application/x-www-form-urlencoded"),
    "a form of many fields": post(b"a=b&" * (1 << 20), "application/x-www-form-urlencoded"),
    "a form of a page": post(
        form(4 << 20), "application/x-www-form-urlencoded", more="Origin: http://evil.example\r\n"
    ),
    "a form that is called JSON": post(form(4 << 20)),
    "JSON that is called a form": post(b'{"a": "' + b"x" * (4 << 20) + b'"}', "application/x-www-form-urlencoded"),
    "small chunks": CHUNKS + b"1\r\nx\r\n" * 900_000 + b"0\r\n\r\n",
    "nested lists": post(b"[" * 1_000_000),
    "nested objects": post(b'{"a":' * 500_000),
    "a nested parameter": post(b'{"text_input":"x","max_tokens":1,"p":' + b"[" * 200_000 + b"]" * 200_000 + b"}"),
    "nested inputs": post(b'{"inputs":' + b"[" * 3_000_000, path="/v2/models/ensemble/infer"),
    "compressed nested lists": post(
        gzip.compress(b"[" * 8_000_000), more="Content-Encoding: gzip\r\n", path="/v2/models/ensemble/infer"
    ),
    "a compressed gigabyte": post(
        gzip.compress(bytes(1 << 30), 1), more="Content-Encoding: gzip\r\n", path="/v2/models/ensemble/infer"
    ),
    "many headers": f"GET /v2 HTTP/1.1\r\nHost: localhost\r\n{'A: b' * 20_000}\r\n\r\n".encode(),
    "a long query": f"GET /v2/models/ensemble?{'a=b&' * 15_000} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode(),
}


def sent(port: int, data: bytes) -> str:
    """Return the beginning of the response to the sent data, "" without one."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        with suppress(OSError):
            connection.sendall(data)
        with suppress(OSError):
            return connection.recv(4096).decode()
    return ""


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("door", ["http", "metrics"])
def test_crashing_request_is_blocked_before_the_server(attack: str, door: str, deployment: LocalDeployment) -> None:
    for _ in range(6):
        response = sent(getattr(deployment.record, door), ATTACKS[attack])
        assert response.startswith("HTTP/1.1 "), attack
        assert not response.startswith("HTTP/1.1 503 "), attack
    assert asked(deployment, "POST", GENERATE, {"text_input": "x", "max_tokens": 1})[0] == 200
    record = deployment.journal.read_existing()
    assert (record.state, record.restarts, record.reason) == ("live", 0, "")
    for pid in stubs(deployment):
        size = re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
        assert size is None or int(size[1]) < 600_000


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8000", "localhost.evil.example", "10.0.0.1"])
@pytest.mark.parametrize("path", ["/v2/health/ready", "/v2/models/ensemble/config", "/metrics"])
def test_dns_rebinding_request_is_rejected(host: str, path: str, deployment: LocalDeployment) -> None:
    port = deployment.record.metrics if path == "/metrics" else deployment.record.http
    request = f"GET {path} HTTP/1.1\r\nHost: {host}\r\nOrigin: http://{host}\r\n\r\n"
    assert sent(port, request.encode()).startswith("HTTP/1.1 421 ")
    assert sent(port, request.replace(host, f"localhost:{port}").encode()).startswith("HTTP/1.1 200 ")


def test_cross_site_request_is_rejected(deployment: LocalDeployment) -> None:
    body = {"text_input": "x", "max_tokens": 1}
    for page in ({"Origin": "http://evil.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}):
        assert asked(deployment, "POST", GENERATE, body, **{"Content-Type": "text/plain"} | page)[0] == 403


def test_http_and_metrics_ports_belong_to_the_front_not_the_server(deployment: LocalDeployment) -> None:
    """HTTP and metrics ports belong to the front, not to the server."""
    place = deployment.journal.root / "revisions" / "1"
    assert {path.name for path in place.glob("*.sock")} == {"http.sock", "metrics.sock", "front.sock"}
    assert all(path.stat().st_mode & 0o777 == 0o700 for path in place.glob("*.sock"))
    record, owners = deployment.record, {}
    for pid in stubs(deployment):
        for port in listens(pid):
            owners[port] = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
    assert "trtspec.serving.front" in owners[record.http]
    assert "trtspec.serving.front" in owners[record.metrics]
    assert set(owners) == {record.http, record.grpc, record.metrics}


def listens(pid: int) -> list[int]:
    """Return the TCP ports on which a process listens."""
    nodes = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            nodes.add(entry.readlink().name)
    tables = (Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:] for table in ("tcp", "tcp6"))
    lines = [line.split() for table in tables for line in table]
    return [int(line[1].rpartition(":")[2], 16) for line in lines if line[3] == "0A" and f"socket:[{line[9]}]" in nodes]


def test_nvidia_client_sends_binary_tensors_through_the_front(deployment: LocalDeployment) -> None:
    http = pytest.importorskip("tritonclient.http", reason="tritonclient[http] is not installed")
    with http.InferenceServerClient(f"127.0.0.1:{deployment.record.http}", concurrency=4) as client:
        assert client.is_server_ready()
        assert client.get_model_config("ensemble")["name"] == "ensemble"
        text = http.InferInput("text_input", [1, 1], "BYTES")
        text.set_data_from_numpy(numpy.array([[b"x" * 100_000]], dtype=object))
        tokens = http.InferInput("max_tokens", [1, 1], "INT32")
        tokens.set_data_from_numpy(numpy.array([[1]], dtype=numpy.int32))
        with pytest.raises(Exception, match="decoupled"):  # the server's reply for a streaming model
            client.infer("ensemble", [text, tokens], request_compression_algorithm="gzip")


def test_model_code_upload_requires_the_token(deployment: LocalDeployment, tmp_path: Path, token: str) -> None:
    """Must be the last test, because the model's process is replaced."""
    evil = base64.b64encode(EVIL.replace(b"PLACE", repr(str(tmp_path / "run")).encode())).decode()
    body = {"parameters": {"config": json.dumps(EVIL_CONFIG), "file:1/model.py": evil}}
    path = "/v2/repository/models/ensemble/load"
    for headers in ({}, {"Content-Type": "text/plain"}, {HEADER: "0" * 64}):
        assert asked(deployment, "POST", path, body, **headers) == (
            403,
            f'{{"error":"This API is restricted, expecting header \'{HEADER}\'"}}',
        )
    page = {"Content-Type": "text/plain", "Origin": "http://evil.example", HEADER: token}
    assert asked(deployment, "POST", path, body, **page)[0] == 403, "a web page is rejected even with the token"
    assert not (tmp_path / "run").exists()
    status, _ = asked(deployment, "POST", path, body, **{HEADER: token})
    assert (tmp_path / "run").exists(), "the attack succeeds with the token"
    assert Client.at(deployment.record.endpoints["http"], token=token).controls()
    assert status in (200, 400)


@pytest.mark.slow
def test_deployment_recovers_from_six_crashes_caused_by_requests(deployment: LocalDeployment) -> None:
    """This user sends requests that the front rejects to the server's socket: it recovers from six crashes."""
    url = server_url(deployment.journal, deployment.record.revision)
    known = deployment.journal.read_existing
    for count in range(1, 7):
        assert wait_until(lambda: known().state == "live" and Client.at(url, 2).is_ready(), 90)
        connection = UnixConnection(url.removeprefix(UNIX), 20)
        with suppress(OSError, HTTPException):
            connection.request("POST", GENERATE, b"[" * 1_000_000)
            connection.getresponse()
        connection.close()
        assert wait_until(lambda expected=count: known().restarts >= expected, 20)  # type: ignore[misc]
    assert sent(deployment.record.http, b"GET /v2 HTTP/1.1\r\nHost: localhost\r\n\r\n").startswith("HTTP/1.1 ")
    assert wait_until(lambda: known().state == "live", 90)
    assert asked(deployment, "POST", GENERATE, {"text_input": "x", "max_tokens": 1})[0] == 200


def test_server_that_accepts_the_placeholder_token_is_not_deployed(
    deployment: LocalDeployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The token was hidden before the server read it, so that the placeholder would grant access."""
    monkeypatch.setenv("TRTSPEC_STATE", str(tmp_path))
    monkeypatch.setattr("secrets.token_hex", lambda count: "x" * 2 * count)
    with pytest.raises(DeployError, match="accept a token that anyone can guess"):
        deploy_local(make_echo_artifact(tmp_path / "open"), DeployOptions(name="open", timeout_s=60))
