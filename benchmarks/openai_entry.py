# SPDX-License-Identifier: Apache-2.0
"""Measure the latency that the OpenAI-compatible gateway adds to a token, compared with the same streams from Triton.

A model on a real tritonserver sends the current time as each token: five digits in units of 10 us. The receiver
therefore knows each token's latency, over gRPC or as an event of the gateway. Rounds of the two alternate within a run,
and the result is the difference of their medians with its spread. The gateway's processor time per token is reported
too, because it hardly depends on other load.

    python benchmarks/openai_entry.py --streams 64 --tokens-per-s 20 --out FILE
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import httptools
import numpy as np
from tritonclient.grpc import service_pb2, service_pb2_grpc

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.machine import environment
from tests.serving.triton.serving import Served, serving
from trtspec.core.ports import LOOPBACK, free_ports
from trtspec.serving.gateway.command import gateway_command, ready_url, write_config
from trtspec.serving.gateway.config import GatewayConfig, GatewayLimits

UNITS = 100_000  # units of 10 us, so latencies up to one second can be measured
MODEL = "tensorrt_llm"
CONFIG = """
name: "NAME" backend: "python" max_batch_size: 128
model_transaction_policy { decoupled: true }
instance_group { kind: KIND_CPU count: 1 }
input { name: "input_ids" data_type: TYPE_INT32 dims: [ -1 ] allow_ragged_batch: true }
input { name: "input_lengths" data_type: TYPE_INT32 dims: [ 1 ] }
input { name: "request_output_len" data_type: TYPE_INT32 dims: [ 1 ] }
input { name: "end_id" data_type: TYPE_INT32 dims: [ 1 ] optional: true }
input { name: "streaming" data_type: TYPE_BOOL dims: [ 1 ] optional: true }
input { name: "temperature" data_type: TYPE_FP32 dims: [ 1 ] optional: true }
input { name: "runtime_top_k" data_type: TYPE_INT32 dims: [ 1 ] optional: true }
input { name: "runtime_top_p" data_type: TYPE_FP32 dims: [ 1 ] optional: true }
input { name: "seed" data_type: TYPE_UINT64 dims: [ 1 ] optional: true }
output { name: "output_ids" data_type: TYPE_INT32 dims: [ -1, -1 ] }
output { name: "sequence_length" data_type: TYPE_INT32 dims: [ -1 ] }
parameters { key: "tokens_per_s" value { string_value: "RATE" } }
"""
CODE = '''
import json, threading, time
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    """Sends the time as tokens, evenly, from one thread."""

    def initialize(self, args):
        rate = float(json.loads(args["model_config"])["parameters"]["tokens_per_s"]["string_value"])
        self.gap, self.new, self.open = 1 / rate, [], []
        self.ends = False
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def execute(self, requests):
        for request in requests:
            left = int(pb_utils.get_input_tensor_by_name(request, "request_output_len").as_numpy().reshape(-1)[0])
            self.new.append([time.monotonic() + self.gap * (len(self.open) + len(self.new)) % 97 / 97, left,
                             request.get_response_sender()])

    def run(self):
        while not self.ends:
            while self.new:
                self.open.append(self.new.pop())
            now = time.monotonic()
            for each in [each for each in self.open if each[0] <= now]:
                self.send(each)
            time.sleep(0.001)

    def send(self, each):
        each[0] += self.gap
        each[1] -= 1
        token = int(time.monotonic() * 100000) % 100000
        tensors = [pb_utils.Tensor("output_ids", np.array([[[token]]], np.int32)),
                   pb_utils.Tensor("sequence_length", np.array([[1]], np.int32))]
        each[2].send(pb_utils.InferenceResponse(tensors), flags=0 if each[1] else 1)
        if not each[1]:
            self.open.remove(each)

    def finalize(self):
        self.ends = True
        self.thread.join()
'''

Ask = Callable[[list[float]], Coroutine[Any, Any, None]]


def make_model(root: Path, rate: float) -> Path:
    """Write the model repository."""
    version = root / "models" / MODEL / "1"
    version.mkdir(parents=True)
    (version.parent / "config.pbtxt").write_text(CONFIG.replace("NAME", MODEL).replace("RATE", str(rate)))
    (version / "model.py").write_text(CODE)
    return root / "models"


def make_tokenizer(root: Path) -> Path:
    """Write a tokenizer with one token per five digits."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({f"{number:05}": number for number in range(UNITS)}, unk_token="00000"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.Fuse()
    root.mkdir()
    tokenizer.save(str(root / "tokenizer.json"))
    return root


def way_ms(token: int) -> float:
    """Return a token's latency in milliseconds."""
    return (int(time.monotonic() * UNITS) % UNITS - token) % UNITS / 100


async def ask_triton(served: Served, tokens: int, ways: list[float]) -> None:
    """Receive one stream over gRPC."""
    import grpc

    request = service_pb2.ModelInferRequest(model_name=MODEL)
    for name, array in (
        ("input_ids", np.array([[1]], np.int32)),
        ("input_lengths", np.array([[1]], np.int32)),
        ("request_output_len", np.array([[tokens]], np.int32)),
    ):
        request.inputs.add(name=name, datatype="INT32", shape=array.shape)
        request.raw_input_contents.append(array.tobytes())
    async with grpc.aio.insecure_channel(f"{LOOPBACK}:{served.grpc}") as channel:
        call = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelStreamInfer()
        await call.write(request)
        await call.done_writing()
        async for message in call:
            raw = dict(
                zip(
                    [output.name for output in message.infer_response.outputs],
                    message.infer_response.raw_output_contents,
                    strict=True,
                )
            )
            if raw:
                ways.append(way_ms(int(np.frombuffer(raw["output_ids"], np.int32)[0])))


class Events:
    """Receives the events of one response."""

    def __init__(self, ways: list[float]) -> None:
        self.ways, self.done = ways, False

    def on_body(self, body: bytes) -> None:
        for event in body.split(b"\n\n"):
            if event.startswith(b"data: {"):
                text = json.loads(event[6:])["choices"][0]["text"]
                self.ways += [way_ms(int(text[at : at + 5])) for at in range(0, len(text), 5)]

    def on_message_complete(self) -> None:
        self.done = True


async def ask_entry(config: GatewayConfig, tokens: int, ways: list[float]) -> None:
    """Receive one stream of events."""
    body = json.dumps({"model": config.model, "prompt": [1], "max_tokens": tokens, "stream": True}).encode()
    reader, writer = await asyncio.open_connection(LOOPBACK, config.port)
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {LOOPBACK}:{config.port}\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    events = Events(ways)
    parser = httptools.HttpResponseParser(events)
    while not events.done and (data := await reader.read(1 << 16)):
        parser.feed_data(data)
    writer.close()


@contextmanager
def started(config: GatewayConfig, root: Path) -> Iterator[int]:
    """Run the gateway in a separate process; yield its process id."""
    write_config(config, root / "entry.json")
    process = subprocess.Popen(gateway_command(root / "entry.json"))
    try:
        deadline = time.monotonic() + 60
        while not answers(ready_url(config)) and time.monotonic() < deadline:
            time.sleep(0.1)
        yield process.pid
    finally:
        process.terminate()
        process.wait(20)


def answers(url: str) -> bool:
    try:
        with urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def cpu_s(pid: int) -> float:
    """Return the processor time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def round_of(streams: int, ask: Ask) -> list[float]:
    """Return the latencies of all tokens of a round in ms."""
    ways: list[float] = []
    await asyncio.gather(*(ask(ways) for _ in range(streams)))
    return ways


async def measure(served: Served, config: GatewayConfig, streams: int, tokens: int, rounds: int) -> dict[str, Any]:
    sides: dict[str, Ask] = {
        "triton": lambda ways: ask_triton(served, tokens, ways),
        "entry": lambda ways: ask_entry(config, tokens, ways),
    }
    for ask in sides.values():
        await round_of(streams, ask)  # warm-up
    found: dict[str, list[list[float]]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, ask in sides.items():
            ways = await round_of(streams, ask)
            assert len(ways) == streams * tokens, (name, len(ways))
            found[name].append(ways)
    medians = {name: [statistics.median(ways) for ways in each] for name, each in found.items()}
    added = [through - direct for direct, through in zip(medians["triton"], medians["entry"], strict=True)]
    return {
        "streams": streams,
        "tokens_each": tokens,
        "rounds": rounds,
        "median_ms": {name: round(statistics.median(each), 3) for name, each in medians.items()},
        "p99_ms": {name: round(float(np.percentile(np.concatenate(each), 99)), 3) for name, each in found.items()},
        "added_ms": {"median": round(statistics.median(added), 3), "of_rounds": [round(each, 3) for each in added]},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=60)
    parser.add_argument("--tokens-per-s", type=float, default=20.0, help="tokens per second of each stream")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        models, tokenizer = make_model(root, asked.tokens_per_s), make_tokenizer(root / "tokenizer")
        config = GatewayConfig(
            "", free_ports(1)[0], "m", MODEL, str(tokenizer), 4096, 1024, limits=GatewayLimits(max_texts=512)
        )
        with serving(root, models) as served, started(replace(config, grpc=f"{LOOPBACK}:{served.grpc}"), root) as pid:
            before = cpu_s(pid)
            result = asyncio.run(measure(served, config, asked.streams, asked.tokens, asked.rounds))
            tokens = asked.streams * asked.tokens * (asked.rounds + 1)
            result["entry_cpu_ms_per_token"] = round(1000 * (cpu_s(pid) - before) / tokens, 3)
    result = {"tokens_per_s_each": asked.tokens_per_s, **result, "machine": environment()}
    print(json.dumps(result, indent=2))
    if asked.out:
        asked.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
