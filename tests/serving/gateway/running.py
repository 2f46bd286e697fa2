# SPDX-License-Identifier: Apache-2.0
"""A gateway in a thread, and a fake Triton for states that a real server cannot be forced into."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import grpc
import requests
import uvicorn
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.serving.triton.answering import Models
from trtspec.core.http_hosts import host_rules
from trtspec.serving.gateway.__main__ import server_config
from trtspec.serving.gateway.app import make_app
from trtspec.serving.gateway.command import base_url
from trtspec.serving.gateway.config import GatewayConfig
from trtspec.serving.gateway.process_pool import listen

TEMPLATE = """
{%- if tools %}tools: {{ tools | tojson }}
{% endif %}
{%- for message in messages %}{{ message['role'] }}: {{ message['content'] }}
{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"""
WAIT_S = 20.0
INPUTS = (
    "input_ids input_lengths request_output_len end_id streaming stop_words_list temperature runtime_top_k "
    "runtime_top_p seed num_draft_tokens return_log_probs num_top_logprobs"
)


@dataclass(frozen=True)
class RunningGateway:
    """A running gateway; `url` is its address."""

    url: str
    config: GatewayConfig
    server: uvicorn.Server

    def post(self, path: str = "/v1/completions", **body: Any) -> requests.Response:
        asked = {"model": self.config.model, "prompt": "The", **body}
        if "chat" in path:
            asked.pop("prompt")
        return requests.post(self.url + path, json=asked, timeout=WAIT_S)

    def get(self, path: str) -> requests.Response:
        return requests.get(self.url + path, timeout=WAIT_S)

    def metric(self, line: str) -> float:
        """Return the value of a metric by its name and labels, or 0 if it is absent."""
        found = [each for each in self.get("/metrics").text.splitlines() if each.startswith(f"{line} ")]
        return float(found[0].split()[-1]) if found else 0.0


@contextmanager
def serve_gateway(config: GatewayConfig, keys: list[str] | None = None) -> Iterator[RunningGateway]:
    """Serve a gateway in a thread."""
    settings = server_config(make_app(config, keys or [], host_rules("127.0.0.1")), config)
    settings.timeout_graceful_shutdown = 1
    server = uvicorn.Server(settings)
    (listener,) = listen(config.host, config.port)
    config = replace(config, port=listener.getsockname()[1])
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        wait_until(lambda: server.started)
        yield RunningGateway(base_url(config), config, server)
    finally:
        server.should_exit = True
        thread.join(WAIT_S)


def wait_until(holds: Callable[[], bool], timeout_s: float = WAIT_S) -> float:
    """Wait until a condition holds and return the seconds it took; fail after `timeout_s`."""
    began = time.monotonic()
    while not holds():
        assert time.monotonic() - began < timeout_s
        time.sleep(0.02)
    return time.monotonic() - began


def with_template(tokenizer: Path, out: Path) -> Path:
    """Copy a tokenizer and add a chat template."""
    shutil.copytree(tokenizer, out)
    (out / "chat_template.jinja").write_text(TEMPLATE)
    return out


class Fake(Models):
    """A Triton server whose model responds with a function; `status` ends a stream, `ready` is its readiness."""

    def __init__(self) -> None:
        super().__init__()
        self.ready = True
        self.status: tuple[grpc.StatusCode, str] | None = None
        self.inputs, self.outputs = INPUTS.split(), ["output_ids", "sequence_length"]

    @contextmanager
    def taking(self, name: str) -> Iterator[None]:
        """Add a model input temporarily."""
        self.inputs.append(name)
        yield
        self.inputs.remove(name)

    def ModelReady(self, request: Any, context: Any) -> Any:  # noqa: N802  its name
        return service_pb2.ModelReadyResponse(ready=self.ready)

    def ModelConfig(self, request: Any, context: Any) -> Any:  # noqa: N802  its name
        response = service_pb2.ModelConfigResponse()
        response.config.name = request.name
        for name in self.inputs:
            response.config.input.add(name=name)
        for name in self.outputs:
            response.config.output.add(name=name, dims=[1])
        response.config.model_transaction_policy.decoupled = True
        return response

    def ModelStreamInfer(self, request_iterator: Iterator[Any], context: Any) -> Iterator[Any]:  # noqa: N802
        yield from super().ModelStreamInfer(request_iterator, context)
        if self.status is not None:
            context.abort(*self.status)


@contextmanager
def fake_triton() -> Iterator[Fake]:
    """Serve a fake Triton on loopback."""
    fake = Fake()
    server = grpc.server(ThreadPoolExecutor(16))
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(fake, server)
    fake.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield fake
    finally:
        server.stop(grace=None).wait(30)
