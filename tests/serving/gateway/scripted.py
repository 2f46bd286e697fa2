# SPDX-License-Identifier: Apache-2.0
"""A Triton server with one token channel, whose messages and texts a test scripts."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.serving.gateway.running import wait_until
from trtspec.serving.triton.names import CHANNEL_PARAMETER, STREAM_PARAMETER, TOKEN_CHANNELS
from trtspec.serving.triton.python_models.channel_socket import accept, listen
from trtspec.serving.triton.python_models.grpc_client import IS_LAST
from trtspec.serving.triton.python_models.token_channel import CONTROL, LISTENS, MOVED

TIMEOUT_S = 30.0


def int32(*values: int) -> bytes:
    return struct.pack(f"={len(values)}i", *values)


def message(*, last: bool = False, error: str = "", **outputs: bytes) -> Any:
    answer = service_pb2.ModelStreamInferResponse(error_message=error)
    for name, raw in outputs.items():
        answer.infer_response.outputs.add(name=name)
        answer.infer_response.raw_output_contents.append(raw)
    answer.infer_response.parameters[IS_LAST].bool_param = last
    return answer


def final(*ids: int, total: int) -> Any:
    """Return the last response of a text with `total` tokens, of which it has the last ones itself."""
    length = int32(len(ids))
    return message(last=True, output_ids=int32(*ids or (0,)), sequence_length=length, num_output_tokens=int32(total))


SAMPLING = ("end_id", "streaming", "stop_words_list", "temperature", "runtime_top_k", "runtime_top_p", "seed")
INPUTS = ("input_ids", "input_lengths", "request_output_len", *SAMPLING)


class Scripted(service_pb2_grpc.GRPCInferenceServiceServicer):
    """A server with one channel; `text` makes the responses of each other request."""

    def __init__(self) -> None:
        self.channels = "true"
        self.refusal = ""
        self.names: list[str] = []  # of the channels that were asked for
        self.plain: list[bool] = []  # for each text, whether it named no channel
        self.on_channel: SimpleQueue[Any] = SimpleQueue()  # messages of the channel, None for its end
        self.text: Callable[[int], Iterator[Any]] = lambda _: iter(())
        self.moves = False  # whether the channel has a socket
        self.socket: socket.socket | None = None  # of the client that has followed the channel to it

    @property
    def opened(self) -> int:
        return len(self.names)

    def ModelConfig(self, request: Any, context: Any) -> Any:  # noqa: N802  its name
        response = service_pb2.ModelConfigResponse()
        response.config.name = request.name
        for name in INPUTS:
            response.config.input.add(name=name)
        for name in ("output_ids", "sequence_length", "num_output_tokens"):
            response.config.output.add(name=name, dims=[1])
        response.config.model_transaction_policy.decoupled = True
        response.config.parameters[TOKEN_CHANNELS].string_value = self.channels
        return response

    def ModelStreamInfer(self, request_iterator: Iterator[Any], context: Any) -> Iterator[Any]:  # noqa: N802
        (request,) = request_iterator
        if CHANNEL_PARAMETER in request.parameters and STREAM_PARAMETER not in request.parameters:
            self.names.append(request.parameters[CHANNEL_PARAMETER].string_param)
            if self.refusal:
                yield message(last=True, error=self.refusal)
                return
            if self.moves:
                yield from self._move(request.parameters[CHANNEL_PARAMETER].string_param)
            while context.is_active():
                if (each := self.on_channel.get(timeout=TIMEOUT_S)) is None:
                    return
                yield each
            return
        self.plain.append(STREAM_PARAMETER not in request.parameters)
        if STREAM_PARAMETER in request.parameters:  # the request for its channel may come by another thread
            name = request.parameters[CHANNEL_PARAMETER].string_param
            wait_until(lambda: name in self.names)
        yield from self.text(request.parameters[STREAM_PARAMETER].int64_param)

    def ModelReady(self, request: Any, context: Any) -> Any:  # noqa: N802  its name
        return service_pb2.ModelReadyResponse(ready=True)

    def deliver(self, stream: int, *ids: int) -> None:
        raw = int32(stream, len(ids), *ids)
        if self.socket is None:
            self.on_channel.put(message(output_ids=raw))
        else:
            self.socket.sendall(raw)

    def end_channel(self) -> None:
        """End the open channel, whether or not its client has ended it; tokens then come by responses."""
        ended, self.on_channel, self.socket = self.on_channel, SimpleQueue(), None
        ended.put(None)

    def _move(self, name: str) -> Iterator[Any]:
        """Open the channel's socket and wait until the client has connected."""
        listener = listen(name)
        assert listener
        with listener:
            yield message(output_ids=int32(CONTROL, 1, LISTENS))
            deadline = time.monotonic() + TIMEOUT_S
            while (connection := accept(listener)) is None and time.monotonic() < deadline:
                time.sleep(0.01)
        assert connection
        connection.settimeout(TIMEOUT_S)
        self.socket = connection
        yield message(output_ids=int32(CONTROL, 1, MOVED))


@contextmanager
def scripted(texts: int = 6) -> Iterator[tuple[Scripted, str]]:
    """Serve up to `texts` texts at once; yields the server and its address."""
    servicer, server = Scripted(), grpc.server(ThreadPoolExecutor(texts + 2))
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield servicer, f"127.0.0.1:{port}"
    finally:
        servicer.on_channel.put(None)
        if servicer.socket is not None:
            servicer.socket.close()
        server.stop(0).wait(TIMEOUT_S)
