# SPDX-License-Identifier: Apache-2.0
"""Clients that leave are seen, whatever goes wrong with other requests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from trtspec.system import wait_until
from trtspec.triton.python_models.departures import Departures


@pytest.fixture
def departures() -> Iterator[Departures]:
    watching = Departures()
    yield watching
    watching.close()


@pytest.mark.slow
def test_a_request_that_cannot_be_asked_costs_no_other(
    departures: Departures, capsys: pytest.CaptureFixture[str]
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
    assert asked == [1], "it is asked no more"
    assert "no such request" in capsys.readouterr().err
