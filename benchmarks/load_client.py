# SPDX-License-Identifier: Apache-2.0
"""Measure the overhead of the load client: a stub streams from another core to `bench`'s client on one core.

The stub sends the current time as each token, so the client's delay is known for each token. Paced rounds request a
given token rate; in the last round the stub sends as fast as the client reads. Only the client's
processor time is reported.

    python benchmarks/load_client.py --out benchmarks/results/load_client.json
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.machine import cpu_name
from trtspec.bench.load.api import Event, LoadSampling, ParsedResponse, find_api
from trtspec.bench.load.arrivals import Closed
from trtspec.bench.load.client import Endpoint, LoadClient, clock, load_client, runner
from trtspec.bench.load.rounds import LoadWorkload, Round, run_round
from trtspec.core.ports import LOOPBACK
from trtspec.engine.prompts.prompt import Prompt

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
EVENT = (
    'data: {"id": "cmpl-0123456789abcdef01234567", "created": 1, "model": "stub", "object": "text_completion", '
    '"system_fingerprint": null, "choices": [{"index": 0, "text": "TIME", "logprobs": null, "finish_reason": null}], '
    '"usage": null}\n\n'
)
USAGE = 'data: {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": MADE}}\n\ndata: [DONE]\n\n'
WAIT_S = 30.0


class Stub(asyncio.Protocol):
    """Responds with `max_tokens` events at a given rate per second; 0 for as fast as they are read."""

    def connection_made(self, transport: Any) -> None:
        self.transport, self.received = transport, b""
        self.may_write = asyncio.Event()
        self.may_write.set()

    def pause_writing(self) -> None:
        self.may_write.clear()

    def resume_writing(self) -> None:
        self.may_write.set()

    def data_received(self, data: bytes) -> None:
        self.received += data
        head, blank, body = self.received.partition(b"\r\n\r\n")
        if blank and len(body) >= int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0] or 0):
            asked, self.received = json.loads(body), b""
            self.answering = asyncio.ensure_future(self.answer(asked["max_tokens"], float(asked["prompt"])))

    async def answer(self, tokens: int, rate: float) -> None:
        self.transport.write(HEAD)
        due = time.monotonic()
        for _ in range(tokens):
            due += 1 / rate if rate else 0
            if rate:
                await asyncio.sleep(max(0.0, due - time.monotonic()))
            else:
                await self.may_write.wait()  # unbounded: the process ends with the benchmark
            self.write(EVENT.replace("TIME", repr(time.monotonic())))
        self.write(USAGE.replace("MADE", str(tokens)))
        self.transport.write(b"0\r\n\r\n")

    def write(self, text: str) -> None:
        data = text.encode()
        self.transport.write(b"%x\r\n%b\r\n" % (len(data), data))


async def serve() -> None:
    server = await asyncio.get_running_loop().create_server(Stub, LOOPBACK, 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


@contextmanager
def stub(core: int) -> Iterator[str]:
    """Serve on a core for the duration of the block; yield the address."""
    argv = ["taskset", "-c", str(core), sys.executable, str(Path(__file__)), "--serve"]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout
        yield f"http://{LOOPBACK}:{int(process.stdout.readline())}"
    finally:
        process.terminate()
        process.wait(WAIT_S)


class Delays:
    """An API that records the delay of each token."""

    def __init__(self) -> None:
        self.ms: list[float] = []
        self._api = find_api("completions")
        self.api = replace(self._api, read=self.read)

    def read(self, event: Event, reply: ParsedResponse) -> bool:
        brought = self._api.read(event, reply)
        if brought:
            self.ms.append(1000 * (time.monotonic() - float(reply.text[-1])))
        return brought

    def percentiles(self) -> dict[str, float]:
        return {f"p{share}": round(float(np.percentile(self.ms, share)), 3) for share in (50, 90, 99)}


async def ask(client: LoadClient, url: str, streams: int, rate: float, tokens: int) -> tuple[Round, Delays, float]:
    """Run a round of concurrent streams; also return its processor time."""
    delays = Delays()
    workload = LoadWorkload([Prompt(str(rate), "stub", "")], LoadSampling(tokens), "stub")
    endpoint = Endpoint(url, "completions", delays.api, "stub")
    done = await run_round(client, endpoint, Closed(streams), workload, 0, streams)
    assert len(done.answered) == streams, done.samples[0].error
    return done, delays, done.client_cpu_s


async def measure(url: str, streams: int, rates: list[float], seconds: float) -> list[dict[str, Any]]:
    found = []
    async with load_client(300.0) as client:
        await ask(client, url, streams, 100.0, 20)  # warm-up
        for rate in [*rates, 0.0]:
            each = rate / streams
            tokens = round(each * seconds) if rate else 1000
            began = clock()
            done, delays, cpu_s = await ask(client, url, streams, each, tokens)
            made = streams * tokens
            found.append({
                "asked_tokens_per_s": rate or None,
                "tokens": made,
                "tokens_per_s": round(made / done.seconds, 1),
                "client_cpu_us_per_token": round(1e6 * cpu_s / made, 2),
                "client_cpu_share": round(cpu_s / (clock() - began), 4),
                "delay_ms": delays.percentiles() if rate else None,
            })  # fmt: skip
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--rates", type=float, nargs="+", default=[2000.0, 5000.0], help="total tokens per second")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--cores", type=int, nargs=2, default=sorted(os.sched_getaffinity(0))[:2], help="client, stub")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    if asked.serve:
        runner()(serve())
    os.sched_setaffinity(0, {asked.cores[0]})
    with stub(asked.cores[-1]) as url:
        found = runner()(measure(url, asked.streams, asked.rates, asked.seconds))
    result = {"streams": asked.streams, "cores": {"client": 1, "stub": 1}, "rounds": found, "cpu": cpu_name()}
    result |= {"python": sys.version.split()[0], "load_average": [round(each, 2) for each in os.getloadavg()]}
    print(json.dumps(result, indent=2))
    if asked.out:
        asked.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
