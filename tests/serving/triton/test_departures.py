# SPDX-License-Identifier: Apache-2.0
"""Disconnected clients are detected regardless of errors of other requests."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from trtspec.core.processes import wait_until
from trtspec.serving.triton.python_models import interruptions
from trtspec.serving.triton.python_models.interruptions import REPORTED_S, CancellationWatcher, DisconnectCheck


@pytest.fixture
def departures() -> Iterator[CancellationWatcher]:
    watching = CancellationWatcher()
    yield watching
    watching.close()


@pytest.mark.slow
def test_failing_cancellation_check_does_not_affect_other_requests(
    departures: CancellationWatcher, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[int] = []
    left: list[int] = []

    def broken() -> bool:
        asked.append(1)
        raise RuntimeError("no such request")

    departures.watch(broken, lambda: left.append(0))
    assert wait_until(lambda: bool(asked), 10)
    departures.watch(lambda: True, lambda: left.append(1))
    assert wait_until(lambda: left == [1], 10)
    assert asked == [1], "a failed watch must not be polled again"
    assert "no such request" in capsys.readouterr().err


def test_server_is_asked_less_often_if_the_channel_reports_departures(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([0.0, 0.05, 0.11, 0.3, REPORTED_S, REPORTED_S + 0.2, REPORTED_S + 0.3])
    monkeypatch.setattr(interruptions.time, "monotonic", lambda: next(times))
    asked: list[int] = []
    reported: bool | None = None
    check = DisconnectCheck(lambda: bool(asked.append(1)), 0.1)
    check.has_left = lambda: reported
    counts = [(check(), len(asked)) for _ in range(3)]
    assert counts == [(False, 1), (False, 1), (False, 2)]
    reported = False
    counts = [(check(), len(asked)) for _ in range(3)]
    assert counts == [(False, 2), (False, 2), (False, 3)]
    reported = True
    assert check()
    assert len(asked) == 3


class WatchedRequest:
    """A request with a reference to its watch, which refers to it."""

    def __init__(self, departures: CancellationWatcher) -> None:
        self.watch = departures.watch(self.is_cancelled, self.drop)

    def is_cancelled(self) -> bool:
        return False

    def drop(self) -> None:
        raise AssertionError("the client is there")


def test_finished_request_is_released_without_garbage_collection(departures: CancellationWatcher) -> None:
    gc.disable()
    try:
        asked = WatchedRequest(departures)
        gone = weakref.ref(asked)
        asked.watch.close()
        del asked
        assert wait_until(lambda: gone() is None, 10), "a running check must finish"
    finally:
        gc.enable()
