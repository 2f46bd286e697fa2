# SPDX-License-Identifier: Apache-2.0
"""`ps`: the state of each deployment follows its process, not the last record."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from tests.conftest import Run
from trtspec.core.processes import start_time
from trtspec.deployment.journal import DeploymentJournal, DeploymentRecord

HTTP = "http://127.0.0.1:18000"
ADDRESSES = f"{HTTP}; 127.0.0.1:18001; http://127.0.0.1:18002/metrics"


def recorded(name: str, state: str, *, runs: bool = True) -> DeploymentRecord:
    """Record a deployment whose process is this one or has ended."""
    journal = DeploymentJournal(name)
    journal.root.mkdir(parents=True)
    record = DeploymentRecord(
        name=name,
        state=state,
        artifact="/build/tiny",
        pid=os.getpid(),
        started=start_time(os.getpid()) if runs else 1,
        http=18000,
        grpc=18001,
        metrics=18002,
        shm_prefix="x",
        detached=True,
        backend="embedded",
        method="ngram",
    )
    return journal.write(record)


@pytest.fixture
def deployed(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One deployment of each state, all with a known start time."""
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.setattr("trtspec.deployment.journal.time.time", lambda: 1_700_000_000.0)
    recorded("running", "live")
    recorded("loading", "loaded")
    recorded("killed", "live", runs=False)
    recorded("ended", "stopped", runs=False)
    recorded("wrong", "failed", runs=False)


def test_ps_states_reflect_the_processes(deployed: None, trtspec: Run) -> None:
    done = trtspec("ps", "--json")
    assert (done.code, done.err) == (0, "")
    found = done.document["deployments"]
    states = {each["name"]: each["state"] for each in found}
    assert states == {
        "ended": "stopped",
        "killed": "dead",
        "loading": "starting",
        "running": "live",
        "wrong": "failed",
    }
    assert list(states) == sorted(states)
    assert found[3] == {
        "name": "running",
        "state": "live",
        "target": "local",
        "artifact": "/build/tiny",
        "backend": "embedded",
        "method": "ngram",
        "endpoints": dict(zip(("http", "grpc", "metrics"), ADDRESSES.split("; "), strict=True)),
        "host": "127.0.0.1",
        "pid": os.getpid(),
        "since": "2023-11-14T22:13:20+00:00",
        "restarts": 0,
        "reason": "",
    }


@pytest.mark.parametrize("command", ["ps", "status"])
def test_ps_and_status_print_one_row_per_deployment(command: str, deployed: None, trtspec: Run) -> None:
    shown = trtspec(command)
    rows = [line.split(maxsplit=4) for line in shown.out.splitlines()]
    assert (shown.code, shown.err) == (0, "")
    assert rows[0] == ["name", "state", "backend", "method", rows[0][4]]
    assert rows[0][4].split() == ["pid", "since", "endpoints"]
    assert [row[:2] for row in rows[1:]] == [
        ["ended", "stopped"],
        ["killed", "dead"],
        ["loading", "starting"],
        ["running", "live"],
        ["wrong", "failed"],
    ]
    assert rows[4][4].startswith(f"{os.getpid()}  2023-11-14 ")
    assert rows[4][4].endswith(f"  {ADDRESSES}")
    assert rows[1][4].split()[::3] == ["-", "-"], "a stopped deployment has no endpoints"


def test_ps_without_deployments_lists_none(workplace: Path, trtspec: Run) -> None:
    assert trtspec("ps").out == "no deployments\n"
    assert trtspec("status", "--json").document == {"format_version": 1, "deployments": []}
    assert not (workplace / "state").exists()


def test_broken_record_does_not_hide_other_deployments(deployed: None, workplace: Path, trtspec: Run) -> None:
    (workplace / "state" / "deployments" / "killed" / "state.json").write_text("{")
    journal = DeploymentJournal("ended")
    journal.write(replace(journal.read_existing(), target="elsewhere"))
    done = trtspec("ps", "--json")
    found = {each["name"]: each for each in done.document["deployments"]}
    assert (done.code, len(found), found["running"]["state"]) == (0, 5, "live")
    assert (found["killed"]["state"], found["ended"]["state"]) == ("unknown", "unknown")
    assert "the deployment's state cannot be read" in found["killed"]["error"]
    shown = trtspec("ps")
    assert "warning: ended: unknown deploy target 'elsewhere'; known: docker, kubernetes, local" in shown.err
    assert "running" in shown.out


def test_record_of_an_earlier_version_is_shown(deployed: None, workplace: Path, trtspec: Run) -> None:
    path = workplace / "state" / "deployments" / "running" / "state.json"
    lines = [line for line in path.read_text().splitlines() if not any(f'"{k}"' in line for k in ("backend", "since"))]
    path.write_text("\n".join(lines))
    found = {each["name"]: each for each in trtspec("ps", "--json").document["deployments"]}["running"]
    assert (found["backend"], found["since"]) == ("", None)
    assert "running  live      -         ngram" in trtspec("ps").out


def test_restarting_server_is_not_live_and_reports_its_reason(deployed: None, trtspec: Run) -> None:
    journal = DeploymentJournal("running")
    reason = "the process of tensorrt_llm died"
    journal.write(replace(journal.read_existing(), state="restarting", restarts=2, reason=reason))
    [listed] = [each for each in trtspec("ps", "--json").document["deployments"] if each["name"] == "running"]
    assert (listed["state"], listed["restarts"], listed["reason"]) == ("restarting", 2, reason)
    shown = trtspec("status", "running")
    assert (shown.code, shown.out) == (
        1,
        "running is restarting\n  restarted 2 times, last because the process of tensorrt_llm died\n",
    )


def test_status_includes_the_last_sidecar_event(deployed: None, trtspec: Run) -> None:
    journal = DeploymentJournal("running")
    beside = "openai exited with status 3; restarting in 4 s"
    journal.write(replace(journal.read_existing(), state="restarting", beside=beside))
    assert trtspec("status", "running", "--json").document["beside"] == beside
    assert trtspec("status", "running").out == f"running is restarting\n  last sidecar event: {beside}\n"
