# SPDX-License-Identifier: Apache-2.0
"""The gateway's end of token channels: with the quickstart on a real tritonserver, and with a scripted server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any
from urllib.request import urlopen

import pytest

from tests.serving.gateway.running import RunningGateway, wait_until
from tests.serving.gateway.scripted import TIMEOUT_S, final, int32, message, scripted
from tests.serving.triton.serving import Served
from trtspec.serving.gateway.errors import ApiError
from trtspec.serving.gateway.parameters import read_parameters
from trtspec.serving.gateway.token_channel import PushFn
from trtspec.serving.gateway.triton import TritonClient, ints, token_request
from trtspec.serving.triton.python_models.interruptions import DISCONNECT_POLL_S, REPORTED_S
from trtspec.serving.triton.python_models.responses import SHUTTING_DOWN

Responses = list[tuple[dict[str, bytes], bool]]


def run(address: str, use: Callable[[TritonClient], Awaitable[Any]]) -> Any:
    """Return the result of `use` with a client of the server."""

    async def main() -> Any:
        client = TritonClient(address, "tensorrt_llm", TIMEOUT_S)
        try:
            return await asyncio.wait_for(use(client), TIMEOUT_S)
        finally:
            await client.close()

    return asyncio.run(main())


async def read(client: TritonClient, tokens: int = 8, push: PushFn | None = None) -> Responses:
    """Return the responses to a streamed request; `push` may take tokens before."""
    asked = read_parameters({"stream": True, "max_tokens": tokens, "temperature": 0}, chat=False)
    request = token_request(await client.model(), [1, 2, 3], asked, 0, -1, [], 0)
    return [each async for each in client.generate(request, push)]


def ids_of(responses: Responses) -> list[int]:
    found = []
    for outputs, _ in responses:
        ids = ints(outputs["output_ids"])
        found += ids[: ints(outputs["sequence_length"])[0]] if "sequence_length" in outputs else ids
    return found


def test_tokens_behind_the_last_response_are_waited_for_and_keep_their_order() -> None:
    with scripted() as (server, address):

        def text(stream: int) -> Iterator[Any]:
            yield final(5, 6, total=6)
            server.deliver(stream + 1, 99)  # of another text
            time.sleep(0.1)
            server.deliver(stream, 1, 2, 3)
            server.deliver(stream, 4)

        server.text = text
        responses = run(address, read)
        assert ids_of(responses) == [1, 2, 3, 4, 5, 6]
        assert [last for _, last in responses][-1]
        assert (server.opened, server.plain) == (1, [False])


def test_pushed_tokens_are_not_yielded_also_behind_the_last_response() -> None:
    with scripted() as (server, address):

        def text(stream: int) -> Iterator[Any]:
            server.deliver(stream, 1, 2)
            time.sleep(0.1)
            yield final(6, total=6)
            time.sleep(0.1)
            server.deliver(stream, 3)
            time.sleep(0.1)  # until the reader has taken it
            server.deliver(stream, 4, 5)

        server.text = text
        pushed: list[list[int]] = []

        def push(ids: list[int]) -> bool:
            pushed.append(ids)
            return ids != [3]  # left to the reader

        responses = run(address, lambda client: read(client, push=push))
        assert pushed == [[1, 2], [3], [4, 5]]
        assert ids_of(responses) == [3, 6]


def test_tokens_keep_their_order_while_the_reader_is_busy() -> None:
    with scripted() as (server, address):

        def text(stream: int) -> Iterator[Any]:
            for token in range(1, 5):
                server.deliver(stream, token)
                time.sleep(0.05)
            yield final(total=4)

        server.text = text
        order: list[int] = []

        async def use(client: TritonClient) -> None:
            asked = read_parameters({"stream": True, "max_tokens": 4, "temperature": 0}, chat=False)
            request = token_request(await client.model(), [1, 2, 3], asked, 0, -1, [], 0)
            push: PushFn = lambda ids: ids != [1] and not order.extend(ids)  # type: ignore[func-returns-value]  # noqa: E731
            async for outputs, last in client.generate(request, push):
                await asyncio.sleep(0.12)  # writes to a slow client, while further tokens come
                order.extend(ints(outputs["output_ids"]) * (not last))

        run(address, use)
        assert order == [1, 2, 3, 4]


def test_text_whose_tokens_the_channel_lost_is_an_error() -> None:
    with scripted() as (server, address):

        def text(stream: int) -> Iterator[Any]:
            server.deliver(stream, 1)
            yield final(total=3)
            server.on_channel.put(None)

        server.text = text
        with pytest.raises(ApiError) as caught:
            run(address, read)
        assert (caught.value.status, caught.value.code) == (503, "broken")


def test_model_that_does_not_know_the_channel_sends_the_tokens_itself() -> None:
    with scripted() as (server, address):
        server.text = lambda _: iter([message(output_ids=int32(1, 2, 0), sequence_length=int32(2)), final(3, total=3)])
        assert ids_of(run(address, read)) == [1, 2, 3]


def test_error_of_a_text_is_raised_and_the_channel_serves_the_next() -> None:
    with scripted() as (server, address):

        async def use(client: TritonClient) -> Responses:
            server.text = lambda _: iter([message(last=True, error="the request was cancelled")])
            with pytest.raises(ApiError):
                await read(client)
            server.text = lambda _: iter([final(1, total=1)])
            return await read(client)

        assert ids_of(run(address, use)) == [1]
        assert server.opened == 1


def test_tokens_at_the_socket_follow_those_in_responses() -> None:
    with scripted() as (server, address):
        server.moves = True

        def text(stream: int) -> Iterator[Any]:
            wait_until(lambda: server.socket is not None)
            server.deliver(stream, 1, 2)
            raw = int32(stream, 2, 3, 4, stream + 1, 1, 99)  # also of another text
            server.socket.sendall(raw[:9])
            time.sleep(0.1)
            server.socket.sendall(raw[9:])
            yield final(5, total=5)

        server.text = text
        responses = run(address, read)
        assert ids_of(responses) == [1, 2, 3, 4, 5]
        assert server.on_channel.empty()


def test_text_whose_socket_is_closed_is_an_error_and_the_next_has_a_new_channel() -> None:
    with scripted() as (server, address):
        server.moves = True

        def broken(stream: int) -> Iterator[Any]:
            wait_until(lambda: server.socket is not None)
            server.deliver(stream, 1)
            server.socket.close()
            yield final(total=3)

        async def use(client: TritonClient) -> Responses:
            server.text = broken
            with pytest.raises(ApiError) as caught:
                await read(client)
            assert (caught.value.status, caught.value.code) == (503, "broken")
            server.text = lambda _: iter([final(1, total=1)])
            server.end_channel()
            return await read(client)

        assert ids_of(run(address, use)) == [1]
        assert server.opened == 2


def test_refused_channel_is_not_asked_for_again() -> None:
    with scripted() as (server, address):
        server.refusal = "64 token channels are open already"

        async def use(client: TritonClient) -> list[int]:
            server.text = lambda _: iter([final(1, total=1)])
            await read(client)
            while server.opened == 0 or client._tokens is None or client._tokens.is_open:
                await asyncio.sleep(0.01)
            return ids_of(await read(client)) + ids_of(await read(client))

        assert run(address, use) == [1, 1]
        assert (server.opened, server.plain[1:]) == (1, [True, True])


def test_text_that_runs_while_the_channel_is_refused_gets_ordinary_responses() -> None:
    with scripted() as (server, address):
        server.refusal = "64 token channels are open already"

        def text(stream: int) -> Iterator[Any]:
            time.sleep(0.5)  # until the refusal has arrived
            yield message(output_ids=int32(1, 2), sequence_length=int32(2))
            time.sleep(1.2)  # longer than an ended channel would wait for the text's own error
            yield final(3, total=3)

        server.text = text
        assert ids_of(run(address, read)) == [1, 2, 3]


def test_error_of_a_text_replaces_that_of_its_ended_channel() -> None:
    with scripted() as (server, address):

        def text(stream: int) -> Iterator[Any]:
            server.deliver(stream, 1)
            server.on_channel.put(None)
            time.sleep(0.2)
            yield message(last=True, error=SHUTTING_DOWN)

        server.text = text
        with pytest.raises(ApiError) as caught:
            run(address, read)
        assert caught.value.code == "shutting_down"


def test_model_without_channels_is_asked_for_none() -> None:
    with scripted() as (server, address):
        server.channels = "false"
        server.text = lambda _: iter([final(1, total=1)])
        assert ids_of(run(address, read)) == [1]
        assert (server.opened, server.plain) == (0, [True])


def test_channel_is_opened_again_after_it_ended() -> None:
    with scripted() as (server, address):

        async def use(client: TritonClient) -> list[int]:
            server.text = lambda _: iter([final(1, total=1)])
            await read(client)
            server.on_channel.put(None)
            while client._tokens is None or client._tokens.is_open:
                await asyncio.sleep(0.01)
            return ids_of(await read(client))

        assert run(address, use) == [1]
        assert server.opened == 2


@pytest.mark.triton
def test_streams_of_a_real_server_come_by_the_channel(entry: RunningGateway) -> None:
    async def use(client: TritonClient) -> list[Responses]:
        await read(client)  # opens the channel
        return list(await asyncio.gather(*(read(client, 40) for _ in range(4))))

    texts = run(entry.config.grpc, use)
    for responses in texts:
        *streamed, (last, is_last) = responses
        assert is_last
        assert streamed
        assert all("sequence_length" not in outputs for outputs, _ in streamed)
        assert len(ids_of(responses)) == ints(last["num_output_tokens"])[0] == 40
    assert len({tuple(ids_of(responses)) for responses in texts}) == 1


@pytest.mark.triton
def test_cancelled_stream_leaves_the_engine(entry: RunningGateway, served: Served) -> None:
    def cancelled() -> float:
        text = urlopen(f"http://127.0.0.1:{served.metrics}/metrics", timeout=TIMEOUT_S).read().decode()
        lines = [
            line for line in text.splitlines() if line.startswith("trtspec_requests_total{") and '"cancelled"' in line
        ]
        return sum(float(line.split()[-1]) for line in lines)

    async def use(client: TritonClient) -> None:
        await read(client)  # its channel has moved to the socket
        asked = read_parameters({"stream": True, "max_tokens": 900, "temperature": 0, "ignore_eos": True}, chat=False)
        responses = client.generate(token_request(await client.model(), [1, 2, 3], asked, 0, -1, [], 0))
        await anext(responses)
        await asyncio.sleep(3 * DISCONNECT_POLL_S)  # the model has asked Triton, and will not ask again for REPORTED_S
        await responses.aclose()
        await asyncio.to_thread(wait_until, lambda: cancelled() == before + 1, REPORTED_S - 1)

    before = cancelled()
    run(entry.config.grpc, use)
