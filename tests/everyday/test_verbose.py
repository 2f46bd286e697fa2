# SPDX-License-Identifier: Apache-2.0
"""`-v`: decisions and commands on stderr without secrets; usage errors as JSON."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest

from tests.conftest import Run
from trtspec.checkpoints import hub
from trtspec.cli.progress import verbose
from trtspec.core.errors import CheckpointError, DeployError
from trtspec.deployment.journal import DeploymentJournal
from trtspec.kernels.build import _output

TOKEN = "hf_" + "a1B2" * 8
LINE = re.compile(r" *[0-9]+\.[0-9]{2} s  [a-z_]+: .*")


def noted(err: str) -> list[str]:
    """Return the log lines without the seconds."""
    return [line.split(" s  ", 1)[1] for line in err.splitlines() if LINE.fullmatch(line)]


@pytest.mark.slow
def test_verbose_build_logs_decisions_and_store_hits(recipe: Path, trtspec: Run) -> None:
    first = trtspec("-v", "build", recipe, "--json")
    keys = {step["name"]: step["key"] for step in first.document["steps"]}
    lines = noted(first.err)
    assert any(line.startswith("planning: tiny: backend embedded: ") for line in lines)
    key = keys["convert-target"]
    assert f"store: convert-target: never built; building it as {key}" in lines
    entry = recipe.parent / "cache" / "store" / "entries" / key[:2] / key
    assert any(re.fullmatch(rf"store: convert-target: built in .* s, {entry}", line) for line in lines)
    assert lines[-1] == "planning: build/tiny: published"
    again = noted(trtspec("--verbose", "build", recipe).err)
    assert any(re.fullmatch(rf"store: convert-target: hit in .* s, {entry}", line) for line in again)
    assert again[-1] == "planning: build/tiny: unchanged"


def test_plan_without_verbose_logs_nothing(recipe: Path, trtspec: Run) -> None:
    assert noted(trtspec("-v", "plan", recipe).err)
    assert trtspec("plan", recipe).err == ""
    assert logging.getLogger("trtspec").handlers == []
    assert trtspec("plan", "-v", recipe).code == 1, "-v must come before the command"


@pytest.mark.slow
def test_verbose_deploy_logs_the_server_command_line(
    artifact: Path, trtspec: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = tmp_path / "tritonserver"
    server.write_text("#!/bin/sh\necho ' --http-restricted-api <x>\n --grpc-restricted-protocol <x>'\nexit 3\n")
    server.chmod(0o755)
    monkeypatch.setenv("TRTSPEC_TRITONSERVER", str(server))
    failed = trtspec("-v", "deploy", artifact, "--skip-gate", "lossless", "--skip-gate", "min_speedup")
    assert failed.code == DeployError.exit_code
    lines = noted(failed.err)
    journal = DeploymentJournal("tiny")
    command = next(line for line in lines if line.startswith(f"deployment: run {server} --model-repository="))
    assert "'--http-address=unix:<sockets>/http.sock' --http-port=" in command
    assert "--http-restricted-api=shared-memory,model-repository,trace,logging:trtspec-token=<token>" in command
    assert command.endswith(f" ($TRTSPEC_TRITONSERVER), its output goes to {journal.log}")
    assert any(line.startswith("deployment: tiny is staged, process ") for line in lines)


def test_hub_requests_are_logged_without_the_token(
    workplace: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "https://user:secret@hub.example")
    with verbose(), pytest.raises(CheckpointError):
        hub.fetch_snapshot("owner/name", "c" * 40, (), lambda done, total: None)
    [line] = noted(capfd.readouterr().err)
    assert line.startswith(
        f"checkpoints: request from hub.example with HF_TOKEN: owner/name at {'c' * 40}: config.json "
    )


def test_tokens_and_control_characters_are_masked_in_the_log(capfd: pytest.CaptureFixture[str]) -> None:
    with verbose():
        _output("printf", TOKEN, "\x1b[2J", "two\nlines")
    _output("printf", "quiet")
    said = capfd.readouterr()
    assert said.out == ""
    assert noted(said.err) == ["kernels: run printf hf_*** '\\x1b[2J' 'two", "kernels: lines'"]


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (("check", "a", "--nosuch"), "No such option: --nosuch", "trtspec check --help"),
        (("check",), "Missing argument 'RECIPE'.", "trtspec check --help"),
        (("chek", "a"), "No such command 'chek'.", "trtspec --help"),
        (("logs", "a", "--lines", "x"), "Invalid value for '-n' / '--lines'", "trtspec logs --help"),
    ],
)
def test_usage_error_with_json_is_a_document(arguments: tuple[str, ...], message: str, hint: str, trtspec: Run) -> None:
    wrong = trtspec(*arguments, "--json")
    said = wrong.document["error"]
    assert (wrong.code, wrong.document["ok"], said["exit_code"], said["where"]) == (1, False, 1, None)
    assert said["message"].startswith(message)
    assert said["hint"] == hint
    assert message in wrong.err
    assert trtspec(*arguments).out == ""
