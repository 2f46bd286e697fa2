# SPDX-License-Identifier: Apache-2.0
"""The server that a Python model runs in, asked from inside the model.

Requests go through the server's gRPC port and not through the Python backend's own calls, `exec` and `async_exec`:
those make numpy arrays of what comes back without holding Python's lock (infer_request.cc, InferRequest::Exec, and
pb_stub.cc, Stub::ProcessBLSResponseDecoupled, at triton-inference-server/python_backend@f9088ff of July 2026, and
before), so that a model with several threads dies of it sooner or later. Besides, a gRPC request can be cancelled.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import grpc
from tritonclient.grpc import service_pb2_grpc

from trtspec.errors import TrtspecError

TRUE = ("true", "1")
# A response then says whether it is the last, and comes without tensors where that is all it says.
ASKS_FOR_LAST, IS_LAST = "triton_enable_empty_final_response", "triton_final_response"
LONGEST_TEXT_S = 3600.0  # a model whose process died never answers
NO_LIMIT = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]  # logits are large


def own_address(argv: Sequence[str]) -> str:
    """Return where the server that was started with `argv` answers gRPC on this machine.

    Raises:
        TrtspecError: if it does not, or only to those with a certificate.
    """
    words = [word for argument in argv for word in argument.split("=", 1)]
    options = dict(zip(words, [*words[1:], ""], strict=True))
    if options.get("--allow-grpc", "true").lower() not in TRUE:
        raise TrtspecError("the server was started with --allow-grpc=false, but its models are asked by gRPC")
    if options.get("--grpc-use-ssl", "false").lower() in TRUE:
        raise TrtspecError("the server was started with --grpc-use-ssl, but its models are asked without a certificate")
    host = options.get("--grpc-address", "0.0.0.0")
    return f"{'127.0.0.1' if host == '0.0.0.0' else host}:{options.get('--grpc-port', '8001')}"


class OwnServer:
    """The server at an address, asked by many threads at once."""

    def __init__(self, address: str) -> None:
        self._channel = grpc.insecure_channel(address, NO_LIMIT)
        self._open = service_pb2_grpc.GRPCInferenceServiceStub(self._channel).ModelStreamInfer

    def open(self) -> Stream:
        """Return a stream for the calls that make one text. To be closed: a server does not end before its streams."""
        return Stream(self._open)

    def close(self) -> None:
        self._channel.close()


class Stream:
    """Requests one after the other, each after the last response to the one before.

    To open one takes as long as all else that is done for a small request.
    """

    def __init__(self, open_stream: Callable[..., Any]) -> None:
        self._requests: SimpleQueue[Any] = SimpleQueue()
        self._responses = open_stream(iter(self._requests.get, None), timeout=LONGEST_TEXT_S)

    def ask(self, request: Any) -> Iterator[Any]:
        """Yield the responses to a ModelInferRequest; raises TrtspecError where the server does not give them all."""
        request.parameters[ASKS_FOR_LAST].bool_param = True
        self._requests.put(request)
        try:
            for response in self._responses:
                yield response
                if response.infer_response.parameters[IS_LAST].bool_param:
                    return
        except grpc.RpcError as error:
            raise TrtspecError(f"no answer from the server's gRPC port: {error.details()}") from None
        raise TrtspecError("the server closed the stream before it had answered")

    def close(self) -> None:
        """End the request that is not answered yet, and the stream."""
        self._responses.cancel()
        self._requests.put(None)


def own_server() -> OwnServer:
    """Return the server that this process is a model of."""
    argv = Path(f"/proc/{os.getppid()}/cmdline").read_bytes().decode(errors="replace").split("\0")
    return OwnServer(own_address(argv))
