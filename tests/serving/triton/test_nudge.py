# SPDX-License-Identifier: Apache-2.0
"""Wake-up requests make the server deliver requests that arrived while a model executed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from trtspec.core.processes import wait_until
from trtspec.serving.triton.python_models import threaded_model as module
from trtspec.serving.triton.python_models.grpc_client import ModelError
from trtspec.serving.triton.python_models.threaded_model import SchedulerWakeup


class Request:
    """A request passed to `execute`."""

    def __init__(self, identifier: str) -> None:
        self._id = identifier

    def request_id(self) -> str:
        return self._id


class Server:
    """Accepts wake-up requests; `takes_in` is called for each, as a server would call the model."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.takes_in = lambda request: None

    def ask(self, request: Any) -> Iterator[Any]:
        self.asked.append(request)
        self.takes_in(request)
        return iter(())


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def nudge(server: Server) -> Iterator[SchedulerWakeup]:
    nudge = SchedulerWakeup(server, "ensemble")  # type: ignore[arg-type]
    yield nudge
    nudge.close()
    assert not nudge._thread.is_alive()


def executes(nudge: SchedulerWakeup, *identifiers: str) -> None:
    with nudge.behind([Request(identifier) for identifier in identifiers]):
        pass


def test_client_request_is_followed_by_two_wakeups_and_wakeups_by_none(nudge: SchedulerWakeup, server: Server) -> None:
    server.takes_in = lambda request: executes(nudge, request.id)
    executes(nudge, "a client's", "")
    assert wait_until(lambda: len(server.asked) == 2, 10)
    assert not wait_until(lambda: len(server.asked) > 2, 0.1)
    [request, _] = server.asked
    assert request.model_name == "ensemble"
    assert [(each.name, list(each.shape)) for each in request.inputs] == [
        ("text_input", [1, 1]),
        ("max_tokens", [1, 1]),
    ]
    assert nudge.is_wakeup(Request(request.id))
    assert not nudge.is_wakeup(Request(""))


def test_wakeup_is_repeated_until_the_server_executes_it(nudge: SchedulerWakeup, server: Server) -> None:
    """`execute` has not returned to the server yet, so the first wake-up waits too."""
    executes(nudge, "")
    assert wait_until(lambda: len(server.asked) > 3, 10)
    executes(nudge, *[request.id for request in server.asked])
    asked = len(server.asked)
    assert wait_until(nudge._began.is_set, 10)
    assert len(server.asked) <= asked + 1


def test_wakeup_is_not_sent_while_the_model_executes(
    nudge: SchedulerWakeup, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WAKEUP_DELAYS_S", (0.1,))
    goes_on = threading.Event()

    def execute() -> None:
        with nudge.behind([Request("")]):
            goes_on.wait(10)

    executes(nudge, "")
    executing = threading.Thread(target=execute)
    executing.start()
    assert not wait_until(lambda: bool(server.asked), 0.3)
    goes_on.set()
    executing.join(10)
    assert wait_until(lambda: bool(server.asked), 10)


def test_rejected_wakeup_is_retried(nudge: SchedulerWakeup, server: Server) -> None:
    def refuse(request: Any) -> None:
        raise ModelError("Exceeds maximum queue size", "UNAVAILABLE")

    server.takes_in = refuse
    executes(nudge, "")
    assert wait_until(lambda: len(server.asked) > 2, 10)
