# SPDX-License-Identifier: Apache-2.0
"""`rm`, `version`, and the reports of `status` and `history` about a dead deployment."""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests._support.deployed import deploy_local
from tests.conftest import Run
from tests.everyday.test_ps import recorded
from tests.serving.triton.artifact import make_echo_artifact
from trtspec import __version__
from trtspec.core.errors import DeployError
from trtspec.core.paths import state_dir
from trtspec.core.processes import wait_until
from trtspec.deployment import log
from trtspec.deployment.base import deployments, stop
from trtspec.deployment.journal import DeploymentJournal
from trtspec.deployment.log import cause_of_death, problem_lines, signal_log_line
from trtspec.deployment.options import DeployOptions
from trtspec.serving.triton.server import find_server

SHUTDOWN = """\
I1127 11:00:00.000001 17849 grpc_server.cc:2466] Started GRPCInferenceService at 127.0.0.1:8001
E1127 11:00:01.000001 17849 model.cc:12] CUDA error: out of memory
Signal (15) received.
I1127 11:00:02.000001 17849 server.cc:302] Waiting for in-flight requests to complete.
+-------+---------+--------+
| Model | Version | Status |
+-------+---------+--------+
I1127 11:00:03.000001 17849 server.cc:341] All models are stopped, unloading models
"""


@pytest.fixture
def ended(workplace: Path) -> None:
    recorded("stopped", "stopped", runs=False)
    recorded("failed", "failed", runs=False)
    recorded("dead", "live", runs=False)
    recorded("live", "live")


def test_rm_removes_stopped_failed_and_dead_deployments(ended: None, trtspec: Run) -> None:
    done = trtspec("rm", "stopped", "failed", "dead")
    assert (done.code, done.out) == (0, "stopped removed\nfailed removed\ndead removed\n")
    assert [each["name"] for each in trtspec("ps", "--json").document["deployments"]] == ["live"]
    assert [path.name for path in (state_dir() / "deployments").iterdir()] == ["live"]


def test_rm_all_stopped_retains_running_deployments(ended: None, trtspec: Run) -> None:
    done = trtspec("rm", "--all-stopped", "--json")
    assert [each["name"] for each in done.document["removed"]] == ["dead", "failed", "stopped"]
    assert trtspec("rm", "--all-stopped").out == "no ended deployments\n"
    assert [each["name"] for each in deployments()] == ["live"]


def test_rm_without_force_rejects_a_running_deployment(ended: None, trtspec: Run) -> None:
    refused = trtspec("rm", "live")
    assert (refused.code, refused.out) == (1, "")
    assert "error: 'live' is live\nhint: trtspec stop live, or trtspec rm --force live\n" in refused.err
    assert DeploymentJournal("live").read_existing().state == "live"


@pytest.mark.parametrize("words", [(), ("stopped", "--all-stopped")])
def test_rm_requires_either_names_or_all_stopped(ended: None, trtspec: Run, words: tuple[str, ...]) -> None:
    assert "rm requires either names or --all-stopped" in trtspec("rm", *words).err


def test_rm_of_unknown_name_suggests_a_similar_one(ended: None, trtspec: Run) -> None:
    assert "did you mean 'stopped'?" in trtspec("rm", "stoped").err


def test_rm_of_unreadable_record_requires_force(ended: None, trtspec: Run) -> None:
    (DeploymentJournal("stopped").root / "state.json").write_text("{")
    assert "state cannot be read" in trtspec("rm", "stopped").err
    forced = trtspec("rm", "--force", "stopped")
    assert (forced.code, "warning: it may still run: its record is unreadable" in forced.err) == (0, True)
    assert "stopped" not in [each["name"] for each in deployments()]


def test_version_prints_trtspec_and_python_versions(trtspec: Run) -> None:
    assert trtspec("version").out.startswith(f"trtspec {__version__}, Python {platform.python_version()} on ")
    document = trtspec("version", "--json").document
    assert (document["format_version"], document["trtspec"], document["python"]) == (
        1,
        __version__,
        platform.python_version(),
    )
    assert trtspec("-V").out == trtspec("--version").out == f"trtspec {__version__}\n"
    assert "Did you mean 'version'" in trtspec("versoin").err


def test_metrics_of_unknown_name_lists_documents_and_deployments(ended: None, trtspec: Run) -> None:
    said = trtspec("metrics", "quickstart").err
    assert "'quickstart' is neither one of 'dashboard', 'rules', 'scrape' nor a deployment; deployments: dead, " in said
    assert "Value error" not in said


def dead(**fields: object) -> tuple[DeploymentJournal, object]:
    record = replace(recorded("x", "live", runs=False), **fields)
    return DeploymentJournal("x"), record


def test_cause_of_death_is_the_killed_supervisor(workplace: Path, trtspec: Run) -> None:
    journal, record = dead()
    journal.log.write_text(SHUTDOWN)
    assert cause_of_death(journal, record) == f"its supervisor (process {os.getpid()}) was killed"
    shown = trtspec("status", "x")
    assert shown.code == 1
    assert shown.out.splitlines() == [
        f"x is dead: its supervisor (process {os.getpid()}) was killed",
        f"end of {journal.log}:",
        "E1127 11:00:01.000001 17849 model.cc:12] CUDA error: out of memory",
    ]
    assert trtspec("status", "x", "--json").document["cause"] == f"its supervisor (process {os.getpid()}) was killed"


def test_cause_of_death_is_the_signal_logged_by_the_supervisor(workplace: Path) -> None:
    journal, record = dead()
    journal.log.write_bytes(signal_log_line(signal.SIGTERM) + SHUTDOWN.encode())
    assert cause_of_death(journal, record).endswith("was stopped by SIGTERM, not by trtspec stop")
    foreground = replace(record, detached=False)
    assert cause_of_death(journal, foreground).startswith("the command that served it in the foreground ended")


def test_cause_of_death_is_a_machine_restart(workplace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal, record = dead()
    (tmp_path / "stat").write_text(f"cpu 1\nbtime {int(record.since) + 60}\n")
    monkeypatch.setattr(log, "PROC_STAT", tmp_path / "stat")
    assert cause_of_death(journal, record) == "the machine was restarted after it was deployed"


def test_cause_of_death_is_the_kernel_only_if_its_log_has_the_process(
    workplace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, record = dead()
    program = os.path.basename(sys.executable)[:15]
    line = "4,1,1,-;Out of memory: Killed process {} ({}) total-vm:1kB\n"
    monkeypatch.setattr(log, "KERNEL_LOG", tmp_path / "kmsg")
    (tmp_path / "kmsg").write_text(line.format(record.pid, program))
    assert cause_of_death(journal, record).startswith("the kernel killed its supervisor")
    (tmp_path / "kmsg").write_text(line.format(record.pid, "postgres"))
    assert cause_of_death(journal, record).endswith("was killed"), "a process of another container has this pid"


def test_problem_lines_exclude_shutdown_and_inner_traceback_lines() -> None:
    text = SHUTDOWN + "Traceback (most recent call last):\n  File x\n    y = z\nNameError: z\nI1 more\n"
    assert problem_lines(text).splitlines() == [
        "E1127 11:00:01.000001 17849 model.cc:12] CUDA error: out of memory",
        "NameError: z",
    ]
    assert problem_lines("I1 fine\n") == ""


def test_status_of_failed_deployment_includes_the_reason(workplace: Path, trtspec: Run) -> None:
    recorded("x", "staged", runs=False)
    journal = DeploymentJournal("x")
    journal.move(journal.read_existing(), "failed", "http port 8000 is in use by python (process 1)")
    assert trtspec("status", "x").out == "x is failed: http port 8000 is in use by python (process 1)\n"


@pytest.fixture
def echo(workplace: Path):
    try:
        find_server()
    except DeployError as error:
        pytest.skip(str(error))
    yield make_echo_artifact(workplace / "echo")
    for each in deployments():
        stop(each["name"])


@pytest.mark.triton
def test_history_includes_the_stopping_command_and_the_cause_of_death(echo: Path, trtspec: Run) -> None:
    first = deploy_local(echo, DeployOptions(timeout_s=60))
    assert trtspec("stop", "echo").code == 0
    second = deploy_local(echo, DeployOptions(timeout_s=60))
    os.kill(second.record.pid, signal.SIGKILL)
    second.process.wait(5)
    third = deploy_local(echo, DeployOptions(timeout_s=60))
    entries = trtspec("history", "echo", "--json").document["history"]
    details = [entry["detail"] for entry in entries if entry["state"] == "stopped"]
    assert details == ["by trtspec stop", f"its supervisor (process {second.record.pid}) was killed"]
    assert (first.record.revision, third.record.revision) == (1, 3)


@pytest.mark.triton
def test_rm_with_force_stops_a_running_deployment_first(echo: Path, trtspec: Run) -> None:
    served = deploy_local(echo, DeployOptions(timeout_s=60))
    assert trtspec("rm", "echo").code == 1
    assert trtspec("rm", "--force", "echo").code == 0
    assert wait_until(lambda: not served.record.is_running, 5)
    assert trtspec("ps").out == "no deployments\n"


@pytest.mark.triton
def test_cause_of_death_is_the_killed_foreground_command(echo: Path, trtspec: Run) -> None:
    from tests.deployment.test_local import STARTER

    owner = subprocess.Popen([sys.executable, "-c", STARTER, str(echo), "hang"], stdin=-1, stdout=-1)
    assert owner.stdout is not None
    owner.stdout.readline()
    owner.kill()
    owner.communicate(timeout=30)
    record = DeploymentJournal("echo").read_existing()
    assert wait_until(lambda: not record.is_running, 15)
    document = json.loads(trtspec("status", "echo", "--json").out)
    assert document["cause"].startswith("the command that served it in the foreground ended")
