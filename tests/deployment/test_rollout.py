# SPDX-License-Identifier: Apache-2.0
"""Deploying over a live artifact: promotion and rollback on a real tritonserver with echo models."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests._support.deployed import deploy_local
from tests._support.processes import words_of
from tests.serving.triton.artifact import make_echo_artifact
from trtspec.core.errors import DeployError, RolledBack
from trtspec.core.processes import session_processes, wait_until
from trtspec.deployment.base import history, promote, rollback, status
from trtspec.deployment.health import process_model
from trtspec.deployment.journal import DeploymentJournal, DeploymentRecord
from trtspec.deployment.options import DeployOptions
from trtspec.deployment.revision import revision_dir
from trtspec.deployment.rollout import commands
from trtspec.deployment.rollout.state import ROLLBACK, RolloutPolicy, active_rollout, read_rollout, send_command
from trtspec.deployment.targets.local import stop
from trtspec.serving.triton.client import Client
from trtspec.serving.triton.python_models.metrics import artifact_method
from trtspec.serving.triton.server import find_server
from trtspec.store.artifact import load_manifest

pytestmark = [pytest.mark.triton, pytest.mark.slow]

STARTS_S = 60.0
BACK_S = 20.0  # from a fault to the end of a rollout: about 3 s on an idle machine
# An echo takes a few milliseconds, more on a busy machine; a sleeping one takes a hundred times as long.
LIMITS = RolloutPolicy((100,), 0.5, 6, max_latency_ratio=20.0)


class Live:
    """A deployment named "echo" whose artifacts differ by a line of their model."""

    def __init__(self, root: Path) -> None:
        self.root, self.made = root, 0
        self.journal = DeploymentJournal("echo")

    def make(self, before: str = "pass", first: str = "pass") -> Path:
        self.made += 1
        own = f"number = {self.made}" if first == "pass" else first
        return make_echo_artifact(self.root / str(self.made), before=before, first=own)

    def deploy(self, artifact: Path, *shares: int, **options: Any) -> dict[str, Any]:
        wanted = {"detach": True, "timeout_s": STARTS_S, "shares": shares, **options}
        return deploy_local(artifact, DeployOptions(**wanted)).as_dict()

    @property
    def record(self) -> DeploymentRecord:
        return self.journal.read_existing()

    def answers(self) -> bool:
        answer = Client.at(self.record.endpoints["http"], 10).generate({"text_input": "hé", "max_tokens": 1})
        return answer["text_output"] == "hé"

    def states(self, revision: int) -> list[str]:
        return [entry["state"] for entry in history("echo") if entry["revision"] == revision]

    def processes(self, revision: int) -> list[int]:
        """Return the processes of a revision: its server, and the model's."""
        place = f"{revision_dir(self.journal, revision)}/"
        pids = session_processes(self.record.pid, self.record.started)
        return [pid for pid in pids if place in words_of(pid)]


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    root = tmp_path_factory.mktemp("rollout")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRTSPEC_STATE", str(root / "state"))
        try:
            find_server()
        except DeployError as error:
            pytest.skip(str(error))
        patch.setattr(
            commands, "rollout_policy", lambda recipe, shares: replace(LIMITS, shares=tuple(shares) or (100,))
        )
        live = Live(root)
        live.deploy(live.make())
        yield live
        stop("echo", timeout_s=0)


def test_good_revision_is_promoted_and_rollback_restores_the_previous_one(live: Live) -> None:
    before, artifact = live.record, live.make()
    told: list[str] = []
    document = live.deploy(artifact, on_event=lambda state, what: told.append(state))
    assert told[-1] == "promoted"
    revision = document["revision"]
    assert revision == before.revision + 1
    assert document["rollout"]["state"] == "promoted"
    assert live.states(revision) == ["staged", "starting", "loaded", "smoke", "canary", "promoted", "live"]
    record = live.record
    assert (record.artifact, record.pid, record.state_now) == (str(artifact), before.pid, "live")
    assert record.endpoints["http"] != before.endpoints["http"]
    repository = revision_dir(live.journal, revision) / "served" / "model_repository"
    assert any(f"--model-repository={repository}" in words_of(pid) for pid in live.processes(revision))
    method = load_manifest(artifact).recipe.speculation.method
    assert artifact_method({"model_repository": str(repository / "ensemble")}) == method, "the label of its metrics"
    assert live.answers()
    assert wait_until(lambda: not live.processes(before.revision), 30), "the old server has ended"
    assert not Client.at(before.endpoints["http"], 2).is_ready(), "its ports are closed"
    assert live.deploy(artifact)["revision"] == revision, "a served artifact is left unchanged"
    told.clear()
    found = rollback("echo", lambda state, what: told.append(state))
    assert told[-1] == "promoted"
    assert (live.record.artifact, live.record.manifest) == (before.artifact, before.manifest)
    assert (found["revision"], found["files_of"]) == (revision + 1, before.revision)
    staged = next(entry["detail"] for entry in history("echo") if entry["revision"] == revision + 1)
    assert staged == f"the files of revision {before.revision} are staged"
    assert live.answers()


def test_command_for_a_previous_rollout_does_not_affect_the_next(live: Live) -> None:
    send_command(live.journal, ROLLBACK)
    assert live.deploy(live.make())["rollout"]["state"] == "promoted"


@pytest.mark.parametrize(
    ("what", "lines", "reason"),
    [
        ("it does not load", {"before": "raise ValueError('no such weights')"}, "exited with status 1 during startup"),
        ("it refuses", {"first": "raise ValueError('never')"}, "a synthetic request failed|never"),
        ("it is slow", {"first": "import time; time.sleep(1)"}, "takes .* times as long as before"),
    ],
)
def test_bad_revision_is_rolled_back_while_the_old_one_serves(live: Live, what: str, lines: dict, reason: str) -> None:
    before = live.record
    with ThreadPoolExecutor(1) as threads:
        over: list[bool] = []
        asked = threads.submit(lambda: [live.answers() for _ in iter(lambda: bool(over), True) if not time.sleep(0.05)])
        try:
            with pytest.raises(RolledBack, match=reason) as caught:
                # failed requests are repeated for as long as a server may take to start
                live.deploy(live.make(**lines), timeout_s=10.0 if "refuses" in what else STARTS_S)
        finally:
            over.append(True)
        assert caught.value.exit_code == 113
        assert all(asked.result(30))
        assert asked.result()
    assert live.record == before
    rollout = read_rollout(live.journal)
    assert rollout is not None, what
    assert rollout.state == "rolled-back"
    assert not live.processes(rollout.record.revision)
    assert not revision_dir(live.journal, rollout.record.revision).exists()


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (signal.SIGSTOP, "the process of ensemble is stopped"),
        (signal.SIGKILL, "the process of ensemble died|exited with status 1 during startup"),
    ],
)
def test_revision_that_stops_or_dies_while_loading_is_rolled_back_quickly(live: Live, number: int, reason: str) -> None:
    before, began = live.record, time.monotonic()
    with pytest.raises(RolledBack, match=reason):
        live.deploy(live.make(before=f"import time; time.sleep(0.6); os.kill(os.getpid(), {int(number)})"))
    assert time.monotonic() - began < BACK_S
    assert live.record == before
    assert live.answers()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("which", ["server", "model"])
def test_canary_that_dies_or_stops_is_rolled_back(live: Live, number: int, which: str) -> None:
    before = live.record
    document = live.deploy(live.make(), 50)
    assert (document["rollout"]["state"], document["rollout"]["share"]) == ("holding", 0)
    assert live.record == before, "no decision yet"
    revision = document["rollout"]["revision"]
    (pid,) = [pid for pid in live.processes(revision) if bool(process_model(pid)) == (which == "model")]
    os.kill(pid, number)
    assert wait_until(lambda: not active_rollout(live.journal, live.record), BACK_S)
    rollout = read_rollout(live.journal)
    assert rollout is not None
    assert rollout.state == "rolled-back"
    assert "died" in rollout.reason or "stopped" in rollout.reason or "exited with" in rollout.reason
    assert live.record == before
    assert live.answers()
    assert not live.processes(revision)


def test_holding_rollout_is_promoted_or_rolled_back_by_command(live: Live) -> None:
    before, artifact = live.record, live.make()
    held = live.deploy(artifact, 50)["rollout"]
    with pytest.raises(DeployError, match="a rollout is already in progress"):
        live.deploy(live.make())
    assert status("echo")["rollout"]["state"] == "holding"
    assert rollback("echo", lambda state, what: None)["rollout"]["reason"] == "requested by command"
    assert live.record == before
    with pytest.raises(DeployError, match="no rollout of 'echo' is in progress"):
        promote("echo")
    live.deploy(artifact, 50)
    assert promote("echo")["revision"] == held["revision"] + 1
    assert live.answers()


DEPLOYER = """
import sys
from pathlib import Path
from trtspec.store.artifact import load_manifest
from trtspec.deployment.rollout import commands
from tests._support.deployed import deploy_local
from trtspec.deployment.options import DeployOptions
from trtspec.deployment.rollout.state import RolloutPolicy
commands.rollout_policy = lambda recipe, shares: RolloutPolicy((100,), 0.5, 6, max_latency_ratio=20.0)
print(deploy_local(Path(sys.argv[1]), DeployOptions(detach=True, on_event=lambda *_: print("x", flush=True))).as_dict())
"""


def test_rollout_continues_without_its_command_and_the_next_deploy_finds_it(live: Live) -> None:
    artifact, revision = live.make(), live.record.revision + 1
    command = [sys.executable, "-c", DEPLOYER, str(artifact)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "x\n"  # the revision is staged
        owner.kill()
    found = live.deploy(artifact)
    assert (found["revision"], found["rollout"]["state"]) == (revision, "promoted")
    assert live.states(revision).count("staged") == 1


def test_stop_ends_the_rollout_and_leaves_no_processes(live: Live) -> None:
    live.deploy(live.make(), 50)
    record = live.record
    stop("echo", timeout_s=20)
    assert not session_processes(record.pid, record.started)
    rollout = read_rollout(live.journal)
    assert rollout is not None
    assert (rollout.state, rollout.reason) == ("rolled-back", "the deployment was stopped")
    with pytest.raises(DeployError, match="'echo' is stopped"):
        promote("echo")
    assert live.deploy(live.make())["revision"] == record.revision + 2
    assert live.answers()
