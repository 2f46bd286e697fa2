# SPDX-License-Identifier: Apache-2.0
"""The benchmark of the front end: what the null engine emits, what streams count, and a short run on real servers."""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from queue import Queue
from typing import Any

import numpy as np
import pytest

import benchmarks.front as script
from benchmarks.front import run
from benchmarks.front_stages import clients
from benchmarks.front_stages.clients import BodyFn, Load, Received, first_tokens, read_events, step_arrivals
from benchmarks.front_stages.null_engine import MAX_STEPS, NullEngine, Steps
from benchmarks.front_stages.null_scheduler import NullScheduler
from benchmarks.front_stages.quickstart import ratios
from trtspec.core.paths import recipes_dir
from trtspec.core.processes import wait_until
from trtspec.engine.generation.request import EngineRequest, SamplingOptions, Stats, Update
from trtspec.engine.generation.request_state import RequestHandle

ROOT = Path(__file__).parents[2]
WAIT_S = 30.0


@pytest.fixture
def steps(tmp_path: Path) -> Steps:
    (tmp_path / "clock").write_bytes(bytes(8 * MAX_STEPS * 2))
    return Steps(3, 0.0, str(tmp_path / "clock"), (5, 6, 7, 8))


def test_text_is_repeated_and_the_last_step_is_shorter(steps: Steps) -> None:
    assert list(steps.parts(7)) == [(5, 6, 7), (8, 5, 6), (7,)]
    assert Steps.parse(json.dumps({**vars(steps)})) == steps


def test_requests_get_their_steps_together_with_increasing_times(steps: Steps) -> None:
    order: list[int] = []

    async def read(engine: NullEngine, seed: int) -> list[int]:
        found: list[int] = []
        async for ids in engine.generate(seed, 9):
            order.append(seed)
            found += ids
        return found

    async def main() -> list[list[int]]:
        engine = NullEngine(steps)
        return await asyncio.wait_for(asyncio.gather(read(engine, 0), read(engine, 1)), WAIT_S)

    assert asyncio.run(main()) == [[5, 6, 7, 8, 5, 6, 7, 8, 5]] * 2
    assert order == [0, 1] * 3
    times = steps.times()[:, :3]
    assert np.all(np.diff(times) > 0)


def submitted(scheduler: NullScheduler, seed: int) -> tuple[RequestHandle, Queue[Update]]:
    updates: Queue[Update] = Queue()
    return scheduler.submit(EngineRequest((1, 2), 7, SamplingOptions(seed=seed)), updates.put), updates


def test_scheduler_emits_steps_with_increasing_times(steps: Steps) -> None:
    with closing(NullScheduler(steps)) as scheduler:
        texts = [submitted(scheduler, seed)[1] for seed in (0, 1)]
        found = [[updates.get(timeout=WAIT_S) for _ in range(3)] for updates in texts]
    for updates in found:
        assert [update.new_ids for update in updates] == [(5, 6, 7), (8, 5, 6), (7,)]
        assert [update.finish_reason for update in updates] == [None, None, "length"]
        assert [update.stats for update in updates] == [Stats(2, 3), Stats(2, 6), Stats(2, 7)]
    assert np.all(np.diff(steps.times()[:, :3]) > 0)
    assert np.all(steps.times()[:, 3:] == 0)


def test_scheduler_ends_a_cancelled_request(steps: Steps) -> None:
    with closing(NullScheduler(replace(steps, step_s=0.1))) as scheduler:
        handle, updates = submitted(scheduler, 0)
        handle.cancel()
        while (reason := updates.get(timeout=WAIT_S).finish_reason) is None:
            pass
        assert reason == "cancelled"
        assert wait_until(lambda: scheduler.occupancy == (0, 0), WAIT_S)


class Server(asyncio.Protocol):
    """Answers each request with three events in parts that split an event, then the end of the response."""

    status = "200 OK"

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        event = b'data: {"choices": []}\n\n'
        self.transport.write(f"HTTP/1.1 {self.status}\r\n\r\n".encode() + event + event[:3])
        asyncio.get_running_loop().call_later(0.01, self.transport.write, event[3:] + event + b"0\r\n\r\n")


def load_of(steps: int, times: Any, seconds: float = 0.1) -> Load:
    return Load(streams=2, steps=steps, tokens=6, warmup_s=0.0, seconds=seconds, times=times)


def receive(load: Load) -> Received:
    async def main() -> Received:
        server = await asyncio.get_running_loop().create_server(Server, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server:
            body: BodyFn = lambda seed, tokens: {"seed": seed, "max_tokens": tokens}  # noqa: E731
            return await asyncio.to_thread(read_events, port, "/", body, load)

    return asyncio.run(asyncio.wait_for(main(), WAIT_S))


def test_events_are_counted_and_have_latencies() -> None:
    received = receive(load_of(3, np.zeros((2, 3))))
    assert received.errors == []
    assert received.merged == 1  # the first text of a stream, which should have been shorter
    assert received.events >= 3 * len(received.first_s) >= 6  # texts that end after the round have no latency
    assert len(received.other_s) == 2 * len(received.first_s)


def test_texts_with_another_number_of_events_have_no_latency() -> None:
    received = receive(load_of(4, np.zeros((2, 4))))
    assert received.merged >= 2
    assert received.first_s == []
    assert received.events >= 6


def test_time_of_arrival_is_that_of_the_last_part_and_not_of_reading() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname(), timeout=WAIT_S) as reader,
    ):
        reader.setsockopt(socket.SOL_SOCKET, clients.SO_TIMESTAMPNS, 1)
        writer, _ = server.accept()  # unbounded: the reader has connected
        with writer:
            writer.sendall(b"a")
            time.sleep(0.05)
            began = time.time()
            writer.sendall(b"b")
            written = time.time()
            time.sleep(0.05)
            data, arrived = clients.receive(reader)
    assert data == b"ab"
    assert began - 0.001 <= arrived <= written + 0.02


def test_error_response_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Server, "status", "503 Service Unavailable")
    received = receive(load_of(3, np.zeros((2, 3))))
    assert [error.split("\r\n")[0] for error in received.errors] == ["HTTP/1.1 503 Service Unavailable"] * 2


def test_stream_that_ends_within_a_text_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def close(server: Server, data: bytes) -> None:
        server.transport.write(b'HTTP/1.1 200 OK\r\n\r\ndata: {"choices": []}\n\n')
        server.transport.close()

    monkeypatch.setattr(Server, "data_received", close)
    assert receive(load_of(3, np.zeros((2, 3)))).errors == ["the connection ended within a text"] * 2


def test_steps_in_merged_events_arrive_with_the_events() -> None:
    event = b'data: {"choices": [{"index": 0, "text": "%b", "x": null}]}\n\n'
    raw = [
        (1.0, event % b"abc" + (event % b"de\\n")[:9]),
        (2.0, (event % b"de\\n")[9:] + event % b""),
        (3.0, event % b"f"),
    ]
    load = replace(load_of(4, np.zeros((2, 4))), characters=np.array([2.0, 3.0, 6.0, 7.0]))
    assert step_arrivals(raw, load).tolist() == [1.0, 1.0, 2.0, 3.0]


def test_first_texts_of_streams_end_at_different_times() -> None:
    load = Load(streams=4, steps=8, tokens=32, warmup_s=0.0, seconds=1.0, times=np.zeros((4, 8)))
    assert [first_tokens(load, stream) for stream in range(4)] == [8, 16, 24, 32]


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from trtspec.cli.app import main

    root = tmp_path_factory.mktemp("front")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRTSPEC_CACHE", str(root / "cache"))
        with pytest.raises(SystemExit) as ended:
            main(["build", str(recipes_dir() / "quickstart.yaml"), "--out", str(root / "artifact"), "--json"])
    assert ended.value.code == 0
    return root / "artifact"


@pytest.mark.triton
@pytest.mark.slow
def test_all_stages_deliver_the_text(artifact: Path) -> None:
    asked = argparse.Namespace(
        streams=4, tokens_per_step=2, seconds=1.0, rate=400.0, tokens=40, artifact=artifact, gateway_processes=2,
        stages="grpc,generate_stream,gateway,uvicorn",
    )  # fmt: skip
    document = run(asked)
    for stage in asked.stages.split(","):
        assert 100 < document["tokens_per_s"][stage] < 600
        assert document["stages"][stage]["other_ms"]["p50"] < 1000
    assert document["tokens_per_s"]["vllm"] is None


def test_missing_artifact_is_built_in_a_temporary_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script, "BUILT", tmp_path / "none")
    monkeypatch.setenv("TRTSPEC_CACHE", str(tmp_path / "cache"))
    assert script.find_artifact(tmp_path) == tmp_path / "quickstart"
    assert (tmp_path / "quickstart" / "manifest.json").exists()
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("command", [["benchmarks/front.py"], ["-m", "benchmarks.front"]])
def test_script_and_module_have_the_same_options(command: list[str]) -> None:
    shown = subprocess.run(
        [sys.executable, *command, "--help"], cwd=ROOT, capture_output=True, text=True, timeout=WAIT_S, check=True
    )
    assert "usage: python benchmarks/front.py" in shown.stdout
    assert "--tokens-per-step" in shown.stdout


def test_ratio_is_of_medians_for_each_mode() -> None:
    rates = {("in process", "drafts"): (10, 90, 20), ("served", "drafts"): (16, 15, 90)}
    rates |= {("in process", "no drafts"): (10,), ("served", "no drafts"): (5,)}
    results: list[dict[str, object]] = [
        {"side": side, "mode": mode, "tokens_per_s": rate} for (side, mode), each in rates.items() for rate in each
    ]
    assert ratios(results) == {"drafts": 0.8, "no drafts": 0.5}
