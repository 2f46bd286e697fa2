# SPDX-License-Identifier: Apache-2.0
"""The reader of a token channel in another model, with a scripted server."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import numpy as np
import pytest

from tests.serving.gateway.scripted import TIMEOUT_S, Scripted, final, scripted
from trtspec.engine.generation.request import Stats
from trtspec.serving.triton.python_models import channel_reader
from trtspec.serving.triton.python_models.channel_reader import ChannelReader, ReceivedStream
from trtspec.serving.triton.python_models.grpc_client import LocalServerClient, ModelError, infer_request
from trtspec.serving.triton.python_models.token_channel import pack_counts

Received = list[tuple[list[int], Stats]]


@contextmanager
def reading() -> Iterator[tuple[Scripted, LocalServerClient, ChannelReader]]:
    with scripted() as (server, address):
        server.moves = True
        client = LocalServerClient(address)
        reader = ChannelReader(client, "tensorrt_llm")
        with closing(client), closing(reader):
            yield server, client, reader


def ask(client: LocalServerClient, reader: ChannelReader, received: Received) -> int | None:
    """Send a request, wait for its last response and its tokens, and return the number of tokens, None without."""
    request = infer_request("tensorrt_llm", [("input_ids", np.array([[1]], np.int32))], ["output_ids"])
    stream = reader.join(request, lambda ids, counts: received.append((ids, counts)))
    with closing(client.ask(request)) as responses:
        (total,) = [int(np.frombuffer(each.raw_output_contents[2], np.int32)[0]) for each, _ in responses]
    if stream is None:
        return None
    stream.wait_for(total)
    reader.leave(stream, has_ended=True)
    return total


def deliver(server: Scripted, stream: int, ids: list[int], counts: Stats) -> None:
    server.deliver(stream, *pack_counts(ids, counts))


def at_socket(server: Scripted) -> socket.socket:
    """Return the socket to which the client has followed the channel."""
    deadline = time.monotonic() + TIMEOUT_S
    while server.socket is None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert server.socket is not None
    return server.socket


def test_tokens_and_counts_of_all_steps_precede_the_end() -> None:
    with reading() as (server, client, reader):

        def text(stream: int) -> Iterator[Any]:
            at_socket(server)
            yield final(total=3)
            time.sleep(0.1)
            deliver(server, stream, [1, 2], Stats(4, 2))
            time.sleep(0.1)
            deliver(server, stream, [3], Stats(4, 3, 6, 2, accepted_by_position=(2,), draft_steps=1))

        server.text = text
        received: Received = []
        assert ask(client, reader, received) == 3
        assert received == [
            ([1, 2], Stats(4, 2)),
            ([3], Stats(4, 3, 6, 2, accepted_by_position=(2,), draft_steps=1)),
        ]
        received.clear()
        assert ask(client, reader, received) == 3
        assert server.opened == 1


def test_channel_that_ends_breaks_its_streams_and_the_next_has_another() -> None:
    with reading() as (server, client, reader):

        def broken(stream: int) -> Iterator[Any]:
            at_socket(server).close()
            yield final(total=3)

        def text(stream: int) -> Iterator[Any]:
            at_socket(server)
            deliver(server, stream, [1], Stats())
            yield final(total=1)

        server.text = broken
        with pytest.raises(ModelError, match="ended the response early"):
            ask(client, reader, [])
        server.end_channel()
        server.text = text
        received: Received = []
        assert ask(client, reader, received) == 1
        assert server.opened == 2
        assert received == [([1], Stats())]


def test_tokens_that_never_come_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_reader, "MISSING_S", 0.1)
    with reading() as (server, client, reader):
        server.text = lambda _: iter([final(total=3)])
        with pytest.raises(ModelError, match="ended the response early"):
            ask(client, reader, [])


def test_error_of_a_receiver_ends_its_stream_only(capsys: pytest.CaptureFixture[str]) -> None:
    with reading() as (server, client, reader):

        def text(stream: int) -> Iterator[Any]:
            at_socket(server)
            deliver(server, stream, [1], Stats())
            yield final(total=1)

        server.text = text
        request = infer_request("tensorrt_llm", [("input_ids", np.array([[1]], np.int32))], ["output_ids"])
        stream = reader.join(request, lambda ids, counts: 1 / 0)
        assert stream
        with closing(client.ask(request)) as responses:
            list(responses)
        with pytest.raises(ModelError):
            stream.wait_for(1)
        assert "ZeroDivisionError" in capsys.readouterr().err
        assert ask(client, reader, []) == 1


@pytest.mark.parametrize("why", ["no channels", "refused", "no socket"])
def test_model_without_a_channel_sends_ordinary_responses(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with reading() as (server, client, reader):
        server.channels = "false" if why == "no channels" else "true"
        server.refusal = "64 token channels are open already" if why == "refused" else ""
        if why == "no socket":
            monkeypatch.setattr(channel_reader, "connect", lambda _: None)
        server.text = lambda _: iter([final(1, total=1)])
        assert ask(client, reader, []) is None
        assert ask(client, reader, []) is None
        assert server.opened == (0 if why == "no channels" else 1)
        assert all(server.plain)


def test_stream_of_an_ended_channel_does_not_leave_the_next_one() -> None:
    with reading() as (server, _, reader):
        server.text = lambda _: iter([final(total=0)])

        def joined() -> tuple[ReceivedStream, Received]:
            request = infer_request("tensorrt_llm", [("input_ids", np.array([[1]], np.int32))], ["output_ids"])
            received: Received = []
            stream = reader.join(request, lambda ids, counts: received.append((ids, counts)))
            assert stream
            return stream, received

        old, _ = joined()
        at_socket(server).close()
        server.end_channel()
        with pytest.raises(ModelError):
            old.wait_for(1)
        new, received = joined()
        assert (server.opened, new.number) == (2, old.number)
        reader.leave(old, has_ended=True)
        at_socket(server)
        deliver(server, new.number, [1], Stats())
        new.wait_for(1)
        assert received == [([1], Stats())]
        reader.leave(new, has_ended=True)


def test_channel_without_streams_is_closed_and_the_next_stream_opens_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_reader, "IDLE_POLL_S", 0.05)
    with reading() as (server, client, reader):

        def text(stream: int) -> Iterator[Any]:
            at_socket(server)
            time.sleep(0.3)  # longer than a channel without streams stays open
            deliver(server, stream, [1], Stats())
            yield final(total=1)

        server.text = text
        for opened in (1, 2):
            assert ask(client, reader, []) == 1
            assert server.opened == opened
            deadline = time.monotonic() + TIMEOUT_S
            while reader._open is not None and not reader._open.is_over and time.monotonic() < deadline:
                time.sleep(0.01)
            server.end_channel()
