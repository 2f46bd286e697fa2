# SPDX-License-Identifier: Apache-2.0
"""When a server's drain ends, open requests get exactly one error and no further response."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.serving.triton.fakes import FINAL, Request, make_pb_utils
from trtspec.core.processes import wait_until
from trtspec.serving.triton.python_models.grpc_client import status_from_message
from trtspec.serving.triton.python_models.interruptions import DrainWatcher, ending_file
from trtspec.serving.triton.python_models.responses import SHUTTING_DOWN, Responder

SOON_S = 5.0


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return tmp_path / "model_repository"


@pytest.fixture
def shutdown(repository: Path) -> Iterator[DrainWatcher]:
    found = DrainWatcher(str(repository / "tensorrt_llm"))
    yield found
    found.close()


def responder(request: Request, shutdown: DrainWatcher, *, decoupled: bool = True) -> Responder:
    return Responder(make_pb_utils(), request, threading.Lock(), decoupled=decoupled, shutdown=shutdown)


def test_open_requests_get_the_shutdown_error_but_finished_ones_do_not(
    repository: Path, shutdown: DrainWatcher
) -> None:
    waiting, answered = Request(), Request()
    open_one = responder(waiting, shutdown)
    responder(answered, shutdown).send(None, final=True)
    assert not open_one.is_cancelled()
    ending_file(repository).touch()
    assert wait_until(lambda: bool(waiting.sender.sent), SOON_S)
    [(response, flags)] = waiting.sender.sent
    assert (response.error.message, response.error.code, flags) == (SHUTTING_DOWN, "unavailable", FINAL)
    assert open_one.is_cancelled(), "the generating thread must stop"
    open_one.send_cancelled()
    assert len(waiting.sender.sent) == len(answered.sender.sent) == 1


def test_model_without_decoupling_returns_the_shutdown_error(repository: Path, shutdown: DrainWatcher) -> None:
    open_one = responder(Request(), shutdown, decoupled=False)
    ending_file(repository).touch()
    assert open_one.result().error.message == SHUTTING_DOWN


def test_request_after_shutdown_started_gets_the_shutdown_error(repository: Path, shutdown: DrainWatcher) -> None:
    ending_file(repository).touch()
    assert responder(Request(), shutdown, decoupled=False).result().error.message == SHUTTING_DOWN


def test_shutdown_message_maps_to_unavailable_status() -> None:
    assert status_from_message(SHUTTING_DOWN) == "UNAVAILABLE"
