# SPDX-License-Identifier: Apache-2.0
"""`deploy`, `status` and `stop`: calls of the deployment target, and output."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Run
from tests.deployment.manifests import artifact_of, manifest
from trtspec.deployment.journal import DeploymentJournal
from trtspec.deployment.options import DeployOptions
from trtspec.store.artifact import Artifact

ENDPOINTS = {"http": "http://127.0.0.1:1", "grpc": "127.0.0.1:2", "metrics": "http://127.0.0.1:3/metrics"}
LIVE = {"format_version": 1, "name": "tiny", "state": "live", "endpoints": ENDPOINTS, "pid": 7}


class Target:
    """Deployment target that only records its calls."""

    render, rollouts = None, False

    def __init__(self, document: dict[str, Any]) -> None:
        self.document = document
        self.asked: list[Any] = []

    def deploy(self, journal: DeploymentJournal, artifact: Artifact, options: DeployOptions) -> Target:
        self.asked.append((artifact.root, replace(options, on_event=DeployOptions.on_event)))
        options.on_event("live", "it answered")
        return self

    def as_dict(self) -> dict[str, Any]:
        return self.document

    def wait(self) -> None:
        self.asked.append("wait")

    def status(self, name: str) -> dict[str, Any]:
        self.asked.append(name)
        return self.document

    def stop(self, name: str) -> dict[str, Any]:
        self.asked.append(name)
        return self.document


def use(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> Target:
    monkeypatch.setattr("trtspec.cli.deploy.os.geteuid", lambda: 1000)
    target = Target(LIVE | changes)
    monkeypatch.setattr("trtspec.deployment.base.find_target", lambda name: target)
    monkeypatch.setattr("trtspec.deployment.base.deployment_target", lambda name: target)
    monkeypatch.setattr("trtspec.deployment.base.load_artifact", lambda root, expected: artifact_of(manifest(), root))
    return target


@pytest.fixture(autouse=True)
def gates(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Path]:
    """Record the artifacts whose gates are checked, without measuring."""
    monkeypatch.setenv("TRTSPEC_STATE", str(tmp_path / "state"))
    asked: list[Path] = []

    def hold(artifact: Path, *_: Any, **__: Any) -> bool:
        asked.append(artifact)
        return True

    monkeypatch.setattr("trtspec.deployment.base.ensure_gates", hold)
    return asked


def test_deploy_calls_the_target_and_waits(trtspec: Run, monkeypatch: pytest.MonkeyPatch, gates: list[Path]) -> None:
    target = use(monkeypatch)
    done = trtspec("deploy", "build/tiny", "--http-port", 8000, "--timeout", 9, "--json")
    assert done.code == 0
    assert done.document == LIVE | {"left_out": []}
    options = DeployOptions(ports={"http": 8000}, timeout_s=9.0)
    assert target.asked == [(Path("build/tiny"), options), "wait"]
    assert gates == [Path("build/tiny")]
    assert "  live    it answered\n" in done.err
    assert ENDPOINTS["http"] not in done.err
    assert "press Ctrl-C to stop\n" in done.err


def test_deploy_detached_does_not_wait(trtspec: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    target = use(monkeypatch)
    done = trtspec("deploy", "build/tiny", "--detach")
    assert done.err.splitlines() == ["  live    it answered"]
    assert f"  http    {ENDPOINTS['http']}\n" in done.out
    assert done.out.endswith("tiny is live; stop it with: trtspec stop tiny\n")
    assert len(target.asked) == 1
    assert target.asked[0][1].detach


def test_deploy_to_an_unknown_target_is_an_error(trtspec: Run, workplace: Path) -> None:
    failed = trtspec("deploy", "build/tiny", "--target", "locl")
    assert failed.code == 1
    assert "unknown deploy target 'locl'; known: docker, kubernetes, local\nhint: did you mean 'local'?" in failed.err


@pytest.mark.parametrize(
    ("changes", "code", "said"),
    [
        (
            {"probe": {"ok": True, "seconds": 0.5, "error": None}},
            0,
            f"tiny is live\n  {ENDPOINTS['http']} responded in 0.50 s\n",
        ),
        (
            {"state": "unhealthy", "probe": {"ok": False, "seconds": 1, "error": "late"}},
            1,
            f"tiny is unhealthy\n  {ENDPOINTS['http']} did not respond: late\n",
        ),
        (
            {"state": "dead", "log": "boom", "log_file": "/log"},
            1,
            "tiny is dead\nend of /log:\nboom\n",
        ),
        ({"state": "starting"}, 0, "tiny is starting\n"),
        ({"state": "stopped"}, 0, "tiny is stopped\n"),
        ({"state": "failed"}, 1, "tiny is failed\n"),
    ],
)
def test_status_reports_the_state_and_its_exit_code(
    changes: dict[str, Any], code: int, said: str, trtspec: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, **changes)
    done = trtspec("status", "tiny", "--json")
    assert (done.code, done.document, done.err) == (code, LIVE | changes, "")
    shown = trtspec("status", "tiny")
    assert (shown.code, shown.out, shown.err) == (code, said, "")


@pytest.mark.parametrize(("was_running", "said"), [(True, "tiny is stopped\n"), (False, "tiny was not running\n")])
def test_stop_reports_whether_the_deployment_was_running(
    was_running: bool, said: str, trtspec: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = use(monkeypatch, state="stopped", was_running=was_running)
    done = trtspec("stop", "tiny", "--json")
    assert (done.code, done.document, done.err) == (0, target.document, "")
    shown = trtspec("stop", "tiny")
    assert (shown.code, shown.out, shown.err) == (0, said, "")


@pytest.mark.parametrize("command", ["status", "stop"])
def test_unknown_deployment_name_is_an_error(command: str, trtspec: Run, workplace: Path) -> None:
    failed = trtspec(command, "nosuch")
    assert failed.code == 1
    assert "nosuch" in failed.err
