# SPDX-License-Identifier: Apache-2.0
"""Rollback without servers: what it waits for, and which steps run only once."""

from __future__ import annotations

import subprocess
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests._support.manifests import resolved
from trtspec.core.errors import DeployError
from trtspec.deployment.journal import DeploymentJournal, DeploymentRecord
from trtspec.deployment.process_group import ProcessGroup, ProcessSpec
from trtspec.deployment.rollout import controller as roller_module
from trtspec.deployment.rollout.controller import RolloutAborted, RolloutController
from trtspec.deployment.rollout.state import ROLLBACK, RolloutRecord, send_command

RECORD = DeploymentRecord("n", "live", "/artifact", 1, 2, 8000, 8001, 8002, "shm", True, revision=1)


class Asked:
    """Paired probes with answers set by the test."""

    def __init__(self) -> None:
        self.answered = threading.Event()
        self.error: Exception | None = None

    def ask(self) -> None:
        assert self.answered.wait(20)
        if self.error:
            raise self.error


class Shares:
    """Records the requested traffic splits, and fails as often as requested."""

    def __init__(self, fails: int = 0) -> None:
        self.given: list[Any] = []
        self.fails = fails

    def give(self, share: int, **how: Any) -> None:
        self.given.append((share, how))
        if len(self.given) <= self.fails:
            raise DeployError("the entry did not take that up")


@pytest.fixture
def roller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RolloutController:
    monkeypatch.setenv("TRTSPEC_STATE", str(tmp_path))
    said: list[str] = []
    return RolloutController(
        DeploymentJournal("n"), RECORD, RolloutRecord(RECORD), lambda *_: None, threading.Event(), said.append
    )  # type: ignore[arg-type,return-value]


@pytest.mark.slow
def test_fault_aborts_rollout_without_waiting_for_pending_answers(roller: RolloutController) -> None:
    pairs = Asked()
    threading.Timer(0.2, lambda: setattr(roller, "_fault", "its server died")).start()
    began = time.monotonic()
    with pytest.raises(RolloutAborted, match="its server died"):
        roller._run_checked(pairs.ask)
    assert time.monotonic() - began < 5
    pairs.answered.set()


@pytest.mark.slow
def test_rollback_request_aborts_rollout_without_waiting_for_gates(roller: RolloutController) -> None:
    gates = Asked()
    threading.Timer(0.2, lambda: setattr(roller, "_wanted", ROLLBACK)).start()
    began = time.monotonic()
    with pytest.raises(RolloutAborted, match="requested by command"):
        roller._run_checked(gates.ask)
    assert time.monotonic() - began < 5
    gates.answered.set()


@pytest.mark.slow
def test_synthetic_requests_are_awaited_and_their_failure_is_raised(roller: RolloutController) -> None:
    pairs = Asked()
    threading.Timer(0.2, pairs.answered.set).start()
    roller._run_checked(pairs.ask)
    pairs.error = DeployError("a synthetic request failed")
    with pytest.raises(DeployError, match="synthetic request failed"):
        roller._run_checked(pairs.ask)


@pytest.mark.parametrize("fails", [0, 1])
def test_traffic_is_withdrawn_once_and_retried_after_a_failure(roller: RolloutController, fails: int) -> None:
    """If the gateway did not apply the split, the next caller retries."""
    roller._shares = shares = Shares(fails)  # type: ignore[assignment]
    for _ in range(3):
        roller._withdraw()
    assert shares.given == [(0, {"alone": True})] * (1 + fails)


@pytest.mark.parametrize(("seen", "reason"), [("its model is stopped", "its model is stopped"), ("", "refused")])
def test_process_fault_replaces_failed_request_as_rollback_reason(
    roller: RolloutController, seen: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process failure is often detected a moment after the failed request."""
    ended: list[str] = []

    def carry_out() -> None:
        threading.Timer(0.1, lambda: setattr(roller, "_fault", seen)).start()
        raise DeployError("refused")

    roller.journal.root.mkdir(parents=True)
    roller._shares = Shares()  # type: ignore[assignment]
    monkeypatch.setattr(roller, "_carry_out", carry_out)
    monkeypatch.setattr(roller, "_roll_back", ended.append)
    roller.run()
    assert ended == [reason]


@pytest.mark.parametrize(
    ("fault", "within_s"),
    [
        ("", roller_module.ENDED_S),
        ("the process of tensorrt_llm_draft died", roller_module.ALONE_S),
        ("the process of tensorrt_llm_draft is stopped", roller_module.ALONE_S),
        ("the process of tensorrt_llm died", None),
        ("the process of tensorrt_llm, tensorrt_llm_draft died", None),
    ],
)
def test_drain_time_depends_on_the_failed_process(
    roller: RolloutController, fault: str, within_s: float | None
) -> None:
    """A target without its drafter finishes its texts; after the target's process ends, nothing is awaited."""
    drained: list[float] = []
    roller._shares = SimpleNamespace(drain=lambda record, within_s: drained.append(within_s))  # type: ignore[assignment]
    roller._fault = fault
    roller._let_end()
    assert drained == ([] if within_s is None else [within_s])


def test_rollout_end_is_recorded_once_despite_failed_state_writes(
    roller: RolloutController, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a disk with room for a journal line but not for a file."""
    left = [OSError(28, "No space left on device")] * 2

    def keep(*_: object) -> None:
        if left:
            raise left.pop()

    monkeypatch.setattr(roller_module, "save_rollout", keep)
    monkeypatch.setattr(roller_module, "NOTE_EVERY_S", 0.01)
    roller.journal.root.mkdir(parents=True)
    roller.rollout = RolloutRecord(RECORD, state="rolled-back", reason="it died")
    roller._note_end()
    assert [(entry["state"], entry["detail"]) for entry in roller.journal.entries()] == [("rolled-back", "it died")]
    assert not left


def test_rollback_reason_is_an_os_error_or_a_logged_bug(roller: RolloutController) -> None:
    said: list[str] = []
    roller._say = said.append
    assert roller._reason(OSError(28, "No space left on device", "/x/state.json")) == "no space left on /x/state.json"
    assert roller._reason(OSError(28, "No space left on device")) == f"no space left on {roller.journal.root}"
    assert said == []
    assert roller._reason(ValueError("of ours")) == "ValueError: of ours; see the log for the traceback"
    assert len(said) == 1


@pytest.mark.parametrize(
    ("gates", "skip", "measures"),
    [
        ({"min_acceptance": 0.5}, (), True),
        ({"min_acceptance": 0.5}, ("lossless",), True),
        ({"min_acceptance": 0.5}, ("lossless", "min_acceptance"), False),
        ({"min_speedup": 1.2}, ("lossless",), False),  # not measurable next to the busy old server
        ({"lossless": False}, (), False),
    ],
)
def test_gates_are_measured_only_if_one_must_be_evaluated(
    gates: dict[str, Any], skip: tuple[str, ...], measures: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRTSPEC_STATE", str(tmp_path / "state"))
    measured: list[object] = []
    monkeypatch.setattr(roller_module, "deploy_load", lambda *asked: measured.append(asked))
    rollout = RolloutRecord(RECORD, skip_gates=skip)
    judging = RolloutController(DeploymentJournal("n"), RECORD, rollout, lambda *_: None, threading.Event(), print)  # type: ignore[arg-type,return-value]
    judging._artifact = SimpleNamespace(root=tmp_path, recipe=resolved(gates=gates, speculation={"method": "ngram"}))  # type: ignore[assignment]
    monkeypatch.setattr(judging, "_keeper", SimpleNamespace(server=SimpleNamespace(url="http://127.0.0.1:1")))
    monkeypatch.setattr(judging, "_run_checked", lambda measure: None)
    judging._judge_gates()
    assert bool(measured) == measures


def test_promotion_stands_if_the_old_server_cannot_be_ended(
    roller: RolloutController, monkeypatch: pytest.MonkeyPatch
) -> None:
    thrown: list[set[int]] = []

    class Before:
        def end(self, drain_s: float) -> None:
            raise subprocess.TimeoutExpired("tritonserver", drain_s)

    roller.journal.root.mkdir(parents=True)
    nothing = lambda *_, **__: None  # noqa: E731
    roller._shares = SimpleNamespace(give=nothing, drain=nothing, finalize=nothing)  # type: ignore[assignment]
    roller._replace = lambda *_: Before()  # type: ignore[assignment,return-value]
    monkeypatch.setattr(roller_module, "remove_old_revisions", lambda journal, revision, kept: thrown.append(kept))
    monkeypatch.setattr(roller, "_carry_out", roller._promote)
    roller.run()
    assert roller.rollout.state == "promoted"
    assert thrown == [{RECORD.revision}]


def test_rollback_command_sent_before_the_rollout_starts_is_executed(
    roller: RolloutController, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[str] = []
    roller.journal.root.mkdir(parents=True)
    send_command(roller.journal, ROLLBACK)
    monkeypatch.setattr(roller, "_carry_out", roller._check)
    monkeypatch.setattr(roller, "_roll_back", ended.append)
    roller.run()
    assert ended == ["requested by command"]


def test_unkillable_process_is_abandoned_without_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stuck:
        pid, returncode = 1 << 30, None

        def poll(self) -> None:
            return None

        def wait(self, timeout_s: float) -> None:
            raise subprocess.TimeoutExpired("tritonserver", timeout_s)

    ProcessGroup(ProcessSpec("server", (), ""), Stuck()).end(0.0)  # type: ignore[arg-type]
