# SPDX-License-Identifier: Apache-2.0
"""What is seen of a server's processes while it starts; the processes are the test's."""

from __future__ import annotations

import pytest

from trtspec.deploy import look
from trtspec.deploy.judge import Judge
from trtspec.deploy.look import StartLook

TARGET, DRAFT = {(2, 20): "target"}, {(3, 30): "draft"}


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch) -> look.Stubs:
    """Return the processes that run models, to be changed."""
    found: look.Stubs = {}
    monkeypatch.setattr(look, "group_of", lambda pid: [pid, *(pid for pid, _ in found)])
    monkeypatch.setattr(look, "stubs_of", lambda pids: {**found})
    monkeypatch.setattr(look, "process_state", lambda pid: "S")
    monkeypatch.setattr(look, "dead_of_group", lambda pid, program: [])
    return found


def test_a_model_whose_process_went_while_others_were_loaded_is_missed_once_the_server_is_ready(
    running: look.Stubs,
) -> None:
    eyes = StartLook(1)
    running |= DRAFT
    assert not eyes.look(is_ready=False).died
    del running[3, 30]
    running |= TARGET
    assert not eyes.look(is_ready=False).died
    assert Judge().fault(eyes.look(is_ready=True)) == "the process of draft died"


def test_a_model_that_nobody_loads_any_more_died(running: look.Stubs, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server says nothing of one that was killed while it loaded."""
    judge, eyes = Judge(), StartLook(1)
    running |= TARGET | DRAFT
    assert not judge.fault(eyes.look(is_ready=False))
    del running[3, 30]
    assert not judge.fault(eyes.look(is_ready=False)), "another one may come"
    monkeypatch.setattr(look, "GONE_S", 0.0)
    assert judge.fault(eyes.look(is_ready=False)) == "the process of draft died"


def test_a_process_that_only_read_a_models_configuration_is_not_missed(running: look.Stubs) -> None:
    eyes = StartLook(1)
    running |= {(9, 90): "draft"}
    eyes.look(is_ready=False)
    del running[9, 90]
    running |= DRAFT | TARGET
    assert not eyes.look(is_ready=True).died
    assert eyes.stubs == DRAFT | TARGET, "who looks from now on misses nothing that is gone rightly"


def test_a_process_that_ended_before_it_was_seen_is_missed_while_nobody_waits_for_it(
    running: look.Stubs, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge, eyes = Judge(), StartLook(1)
    running |= TARGET
    dead = [2, 3]  # the target's is known
    monkeypatch.setattr(look, "dead_of_group", lambda pid, program: dead)
    eyes.look(is_ready=False)
    assert not judge.fault(eyes.look(is_ready=False)), "the server may wait for it yet"
    monkeypatch.setattr(look, "GONE_S", 0.0)
    assert judge.fault(eyes.look(is_ready=False)) == "the process of a model died"
    dead.remove(3)
    assert not judge.fault(eyes.look(is_ready=False))


def test_what_is_stopped_while_it_starts_is_seen(running: look.Stubs, monkeypatch: pytest.MonkeyPatch) -> None:
    running |= TARGET
    monkeypatch.setattr(look, "process_state", lambda pid: "T")
    monkeypatch.setattr(look, "model_of", lambda pid: "target" if pid == 2 else "")
    judge, eyes = Judge(stopped_s=0.0), StartLook(1)
    assert judge.fault(eyes.look(is_ready=False)) == "the process of target, tritonserver is stopped"
