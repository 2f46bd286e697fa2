# SPDX-License-Identifier: Apache-2.0
"""The model's end of token channels, with a fake of Triton's stub."""

from __future__ import annotations

import threading
import time
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.serving.triton.fakes import FINAL, Request, make_pb_utils
from trtspec.engine.generation.request import Stats
from trtspec.serving.triton.names import CHANNEL_PARAMETER, COUNTS_PARAMETER, STREAM_PARAMETER
from trtspec.serving.triton.python_models import channel_socket
from trtspec.serving.triton.python_models.channel_socket import connect, read_values
from trtspec.serving.triton.python_models.interruptions import ENDING_FILE, DrainWatcher
from trtspec.serving.triton.python_models.token_channel import (
    CONTROL,
    LISTENS,
    MAX_CHANNELS,
    MOVED,
    PART_VALUES,
    TokenChannels,
    TokenStream,
    unpack_counts,
)

NAME = "0123456789abcdef" * 2
WAIT_S = 10.0


@pytest.fixture
def channels(tmp_path: Path) -> Iterator[TokenChannels]:
    shutdown = DrainWatcher(str(tmp_path / "repository" / "model"))
    channels = TokenChannels(make_pb_utils(), threading.Lock(), shutdown)
    yield channels
    channels.close()
    shutdown.close()


def opening(name: object = NAME) -> Request:
    return Request(["output_ids"], sent={CHANNEL_PARAMETER: name}, input_ids=1)


def member(number: object, name: str = NAME) -> dict[str, Any]:
    return {CHANNEL_PARAMETER: name, STREAM_PARAMETER: number}


def values(request: Request) -> list[list[int]]:
    """Return the values of each response to an opening request after the one that names the socket."""
    first, *found = [response.outputs["output_ids"].ravel().tolist() for response, _ in request.sender.sent]
    assert first == [CONTROL, 1, LISTENS]
    return found


def test_step_of_all_streams_is_one_response(channels: TokenChannels) -> None:
    request = opening()
    assert channels.opens(request)
    one, two = (channels.stream(member(number)) for number in (7, 9))
    assert one
    assert two
    one.add([1, 2, 3], Stats())
    two.add([4], Stats())
    channels.flush()
    channels.flush()
    two.add([], Stats())
    one.add([5], Stats())
    one.add([6], Stats())
    channels.flush()
    assert values(request) == [[7, 3, 1, 2, 3, 9, 1, 4], [7, 1, 5, 7, 1, 6]]
    assert [flags for _, flags in request.sender.sent] == [0, 0, 0]


def test_tokens_that_are_added_while_others_are_sent_follow(channels: TokenChannels) -> None:
    request = opening()
    assert channels.opens(request)
    stream = channels.stream(member(7))
    assert stream
    send, sender = request.sender.send, request.sender

    def interrupted(*arguments: Any, **options: Any) -> None:
        """Another thread adds tokens in the meantime."""
        sender.send = send
        stream.add([2], Stats())
        channels.flush()
        send(*arguments, **options)

    sender.send = interrupted
    stream.add([1], Stats())
    channels.flush()
    assert values(request) == [[7, 1, 1], [7, 1, 2]]


def test_clients_only_get_their_own_streams(channels: TokenChannels) -> None:
    requests = [opening(f"{number:032x}") for number in range(2)]
    assert all(map(channels.opens, requests))
    for number in range(2):
        stream = channels.stream(member(number, f"{number:032x}"))
        assert stream
        stream.add([10 + number], Stats())
    channels.flush()
    assert [values(request) for request in requests] == [[[0, 1, 10]], [[1, 1, 11]]]


def test_ordinary_requests_and_members_open_nothing(channels: TokenChannels) -> None:
    assert not channels.opens(Request(sent={"model": "m"}))
    assert not channels.opens(Request(sent=member(3)))
    assert channels.stream({}) is None


@pytest.mark.parametrize("parameters", [member(3), member("3", NAME), member(-1), member(1 << 31), member(3, "f" * 32)])
def test_unknown_channel_or_invalid_number_means_ordinary_streaming(
    parameters: dict[str, Any], channels: TokenChannels
) -> None:
    if parameters[STREAM_PARAMETER] != 3:
        channels.opens(opening())
    assert channels.stream(parameters) is None


@pytest.mark.parametrize("name", ["", "x" * 32, NAME.upper(), 5, None, NAME + "0"])
def test_invalid_name_is_refused(name: object, channels: TokenChannels) -> None:
    request = opening(name)
    assert channels.opens(request)
    ((response, flags),) = request.sender.sent
    assert (response.error.code, flags) == ("invalid", FINAL)


def test_second_channel_of_a_name_and_too_many_are_refused(channels: TokenChannels) -> None:
    assert channels.opens(opening())
    again = opening()
    assert channels.opens(again)
    assert "open already" in again.sender.sent[0][0].error.message
    requests = [opening(f"{number:032x}") for number in range(MAX_CHANNELS)]
    assert all(map(channels.opens, requests))
    assert [request.sender.sent[-1][1] == FINAL for request in requests] == [False] * (MAX_CHANNELS - 1) + [True]


def test_channel_of_a_client_that_left_is_closed_and_its_name_free(channels: TokenChannels) -> None:
    request = opening()
    channels.opens(request)
    stream = channels.stream(member(1))
    assert stream
    request.sender.cancelled = True
    deadline = time.monotonic() + WAIT_S
    while channels.stream(member(1)) is not None and time.monotonic() < deadline:
        time.sleep(0.01)
    stream.add([1], Stats())
    channels.flush()
    assert [flags for _, flags in request.sender.sent] == [0, FINAL]
    again = opening()
    channels.opens(again)
    assert [flags for _, flags in again.sender.sent] == [0]


def test_shutdown_ends_a_channel(tmp_path: Path) -> None:
    (tmp_path / "repository").mkdir()
    shutdown = DrainWatcher(str(tmp_path / "repository" / "model"))
    channels = TokenChannels(make_pb_utils(), threading.Lock(), shutdown)
    request = opening()
    channels.opens(request)
    (tmp_path / ENDING_FILE).touch()
    deadline = time.monotonic() + WAIT_S
    while len(request.sender.sent) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert request.sender.sent[1][0].error.code == "unavailable"
    channels.close()
    shutdown.close()


class Client:
    """A client that has followed a channel to its socket."""

    def __init__(self, channels: TokenChannels, request: Request) -> None:
        assert channels.opens(request)
        connection = connect(NAME)
        assert connection
        connection.settimeout(WAIT_S)
        self.socket, self._data = connection, b""

    def read(self, tokens: int) -> dict[int, list[int]]:
        """Return the values of each stream once they have this number of tokens."""
        while sum(map(len, (found := read_values(self._data)[0]).values())) < tokens:
            data = self.socket.recv(1 << 16)
            assert data
            self._data += data
        return found


def joined(channels: TokenChannels, number: int, **parameters: Any) -> TokenStream:
    stream = channels.stream(member(number) | parameters)
    assert stream
    return stream


def test_client_at_the_socket_gets_further_tokens_there(channels: TokenChannels) -> None:
    request = opening()
    assert channels.opens(request)
    stream = joined(channels, 7)
    stream.add([1], Stats())
    channels.flush()
    connection = connect(NAME)
    assert connection
    with connection:
        stream.add([2, 3], Stats())
        joined(channels, 8).add([4], Stats())
        channels.flush()
        assert connection.recv(100) == array("i", [7, 2, 2, 3, 8, 1, 4]).tobytes()
        assert values(request) == [[7, 1, 1], [CONTROL, 1, MOVED]]


def test_part_of_a_large_step_is_sent_before_the_rest(channels: TokenChannels) -> None:
    client = Client(channels, opening())
    with client.socket:
        joined(channels, 1).add([1], Stats())
        channels.flush()
        joined(channels, 2).add(range(PART_VALUES), Stats())
        assert client.read(1 + PART_VALUES) == {1: [1], 2: [*range(PART_VALUES)]}


def test_client_reports_the_streams_that_it_leaves(channels: TokenChannels) -> None:
    assert channels.opens(opening())
    stream = joined(channels, 7)
    assert stream.has_left() is None, "it has no socket yet"
    connection = connect(NAME)
    assert connection
    with connection:
        stream.add([1], Stats())
        channels.flush()
        assert stream.has_left() is False
        connection.send(array("i", [9, 7]).tobytes()[:6])
        assert stream.has_left() is False
        connection.send(array("i", [9, 7]).tobytes()[6:])
        assert stream.has_left() is True
        assert joined(channels, 8).has_left() is False


def test_closed_channel_reports_nothing(channels: TokenChannels) -> None:
    client = Client(channels, opening())
    stream = joined(channels, 1)
    channels.close()
    assert stream.has_left() is None
    client.socket.close()


def test_client_that_reads_slowly_gets_all_tokens_in_order(channels: TokenChannels) -> None:
    client = Client(channels, opening())
    with client.socket:
        stream, count = joined(channels, 1), 300
        for step in range(count):
            stream.add([step] * 1000, Stats())
            channels.flush()  # does not wait
        time.sleep(0.1)
        assert client.read(1000 * count) == {1: [step for step in range(count) for _ in range(1000)]}


def test_client_that_left_while_tokens_wait_ends_the_channel(channels: TokenChannels) -> None:
    request = opening()
    client = Client(channels, request)
    stream = joined(channels, 1)
    for _ in range(300):
        stream.add(range(1000), Stats())
        channels.flush()
    client.socket.close()
    request.sender.cancelled = True
    deadline = time.monotonic() + WAIT_S
    while channels.stream(member(1)) is not None and time.monotonic() < deadline:
        time.sleep(0.01)
    stream.add([1], Stats())
    channels.flush()
    assert request.sender.sent[-1][1] == FINAL


def test_socket_refuses_processes_of_other_users(channels: TokenChannels, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_socket, "ROOT_UID", -1)
    monkeypatch.setattr(channel_socket.os, "geteuid", lambda: 12345)
    request = opening()
    assert channels.opens(request)
    assert connect(NAME) is None
    joined(channels, 1).add([1], Stats())
    channels.flush()
    assert values(request) == [[1, 1, 1]]


def test_counts_precede_the_tokens_of_a_stream_that_asks_for_them(channels: TokenChannels) -> None:
    request = opening()
    assert channels.opens(request)
    stream = joined(channels, 5, **{COUNTS_PARAMETER: True})
    one = Stats(3, 2, 5, 1, accepted_by_position=(1, 0), draft_steps=1)
    two = Stats(3, 3, 7, 1, accepted_by_position=(1, 0, 0), draft_steps=2)
    stream.add([8, 9], one)
    stream.add([10], two)
    channels.flush()
    found, _ = read_values(array("i", values(request)[0]).tobytes())
    assert unpack_counts(found[5]) == ([8, 9, 10], two)


def test_values_end_before_an_incomplete_step() -> None:
    raw = array("i", [1, 2, 5, 6, 2, 1, 7, 1, 1, 8, 3, 2, 9]).tobytes()
    assert read_values(raw) == ({1: [5, 6, 8], 2: [7]}, 40)
    assert read_values(raw[:39]) == ({1: [5, 6], 2: [7]}, 28)
    assert read_values(b"") == ({}, 0)
    assert read_values(array("i", [1, -5, 2, 0]).tobytes()) == ({1: [], 2: []}, 16)
