# SPDX-License-Identifier: Apache-2.0
"""Disconnected clients are detected regardless of errors of other requests."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from trtspec.core.processes import wait_until
from trtspec.serving.triton.python_models.interruptions import CancellationWatcher


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
