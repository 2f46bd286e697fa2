# SPDX-License-Identifier: Apache-2.0
"""Hardening: the options with which a server is started, by those that it supports, and the secret variables."""

from __future__ import annotations

import subprocess
from pathlib import Path
from subprocess import PIPE

import pytest

from trtspec.core.errors import DeployError
from trtspec.serving.triton import hardening
from trtspec.serving.triton.hardening import hardening_options, scrub_token, without_secrets
from trtspec.serving.triton.server import TritonServer

RESTRICTED = ("http-restricted-api", "grpc-restricted-protocol")


def server(root: Path, *options: str) -> TritonServer:
    path = root / "tritonserver"
    path.write_text("#!/bin/sh\n" + "".join(f"echo '  --{option} <string>'\n" for option in options) + "exit 1\n")
    path.chmod(0o755)
    return TritonServer(path, "PATH")


def test_hardening_options_include_only_supported_ones(tmp_path: Path) -> None:
    closed = "shared-memory,model-repository,trace,logging:trtspec-token=abc"
    both = (f"--http-restricted-api={closed}", f"--grpc-restricted-protocol={closed}")
    assert hardening_options(server(tmp_path, *RESTRICTED), "abc") == both
    newer = server(tmp_path, *RESTRICTED, "http-max-input-size", "allow-vertex-ai", "allow-sagemaker")
    more = ("--http-max-input-size=16777216", "--allow-vertex-ai=false", "--allow-sagemaker=false")
    assert hardening_options(newer, "abc") == (*both, *more)


@pytest.mark.parametrize("missing", RESTRICTED)
def test_server_without_access_restriction_options_is_rejected(missing: str, tmp_path: Path) -> None:
    with pytest.raises(DeployError, match=f"it does not support --{missing}, so any client could run") as caught:
        hardening_options(server(tmp_path, *(option for option in RESTRICTED if option != missing)), "abc")
    assert caught.value.where == str(tmp_path / "tritonserver")
    assert "use tritonserver 2." in str(caught.value.hint)
    (tmp_path / "tritonserver").chmod(0o644)
    with pytest.raises(DeployError, match="cannot list its options"):
        hardening_options(TritonServer(tmp_path / "tritonserver", "PATH"), "abc")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HF_TOKEN", "x"),
        ("HUGGING_FACE_HUB_TOKEN", "x"),
        ("OPENAI_API_KEY", "x"),
        ("AWS_SECRET_ACCESS_KEY", "x"),
        ("AWS_PROFILE", "x"),
        ("AZURE_CLIENT_ID", "x"),
        ("GOOGLE_APPLICATION_CREDENTIALS", "/x"),
        ("client_secret", "x"),
        ("PGPASSWORD", "x"),
        ("DB_PASS", "x"),
        ("SSH_AUTH_SOCK", "/x"),
        ("DATABASE_URL", "postgres://user:word@host/db"),
    ],
)
def test_secret_variable_is_removed_unless_allowed(name: str, value: str) -> None:
    assert without_secrets({name: value}) == {}
    assert without_secrets({name: value, "TRTSPEC_PASS_ENV": f"OTHER, {name}"})[name] == value


def test_ordinary_variables_are_retained() -> None:
    plain = {"PATH": "/bin", "TOKENIZERS_PARALLELISM": "false", "KEYBOARD": "us", "HTTP_PROXY": "http://proxy:3128"}
    assert without_secrets(plain) == plain


def launched(script: str, token: str) -> subprocess.Popen[bytes]:
    """Start a process with the token in its arguments that reads a line before it writes one."""
    return subprocess.Popen(["sh", "-c", script, token], stdin=PIPE, stdout=PIPE, start_new_session=True)


def test_token_is_scrubbed_only_after_the_process_writes_output(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other processes write to the same log, so its content does not show that the server has parsed its arguments."""
    monkeypatch.setattr(hardening, "PARSED_TIMEOUT_S", 0.3)
    token = "0123456789abcdef" * 4
    process = launched("read line; echo read; read line", token)
    arguments = Path(f"/proc/{process.pid}/cmdline")
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        scrub_token(process, token)
        assert token in arguments.read_text()
        process.stdin.write(b"\n")
        process.stdin.flush()
        process.stdout.readline()
        scrub_token(process, token)
        assert token not in arguments.read_text()
        assert "x" * 64 in arguments.read_text()
    finally:
        process.kill()
        process.communicate(timeout=10)
