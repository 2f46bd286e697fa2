# SPDX-License-Identifier: Apache-2.0
"""Several gateway processes behind one address: limits, the split of requests, metrics, restarts and the end."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.serving.gateway.running import Fake, fake_triton, wait_until
from tests.serving.gateway.test_failing import says
from tests.serving.triton.artifact import make_tokenizer
from trtspec.core.errors import TrtspecError
from trtspec.core.ports import free_ports
from trtspec.core.processes import process_family
from trtspec.serving.gateway.admission import AdmissionControl
from trtspec.serving.gateway.command import base_url, gateway_command, ready_url, write_config
from trtspec.serving.gateway.config import (
    BackendStats,
    GatewayConfig,
    GatewayLimits,
    MirrorStats,
    Route,
    RouterStats,
    Routes,
    read_router_stats,
    write_router_stats,
    write_routes,
)
from trtspec.serving.gateway.errors import ApiError
from trtspec.serving.gateway.metrics import GAUGES, IN_FLIGHT, REQUESTS
from trtspec.serving.gateway.process_pool import listen
from trtspec.serving.gateway.router import router_stats_path
from trtspec.serving.gateway.shared_state import SharedState

WAIT_S = 20.0
PROCESSES = 2


def in_child(work: object) -> None:
    """Run a function in a forked process; fails if it raises."""
    pid = os.fork()
    if not pid:
        code = 1
        try:
            work()  # type: ignore[operator]
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0


def test_completions_of_all_processes_count_towards_the_limit() -> None:
    shared = SharedState(2)
    gate = AdmissionControl(GatewayLimits(max_texts=3), [], shared=shared)
    with gate.reserve(2):

        def other() -> None:
            shared.index = 1
            with pytest.raises(ApiError), gate.reserve(2):
                pass
            with gate.reserve(1):
                os._exit(0)  # the process dies

        in_child(other)
        assert gate.texts == 3
        shared.retire(1, GAUGES)
        assert gate.texts == 2
    assert gate.texts == 0


def test_request_rate_is_one_for_all_processes() -> None:
    shared = SharedState(2, holders=2)
    gate = AdmissionControl(GatewayLimits(requests_per_minute=2), ["a", "b"], lambda: 5.0, shared)
    gate.check("Bearer a")
    in_child(lambda: gate.check("Bearer a"))
    with pytest.raises(ApiError):
        gate.check("Bearer a")
    gate.check("Bearer b")


def test_requests_are_split_over_processes_as_in_one() -> None:
    shared = SharedState(2)

    def route(generation: int, revision: int) -> dict[int, int]:
        with shared.served(generation) as served:
            served[revision] = served.get(revision, 0) + 1
            return dict(served)

    assert route(0, 0) == {0: 1}
    in_child(lambda: route(7, 3))
    assert route(7, 4) == {3: 1, 4: 1}
    assert route(0, 0) == {0: 1}  # its routes are out of date, and change nothing
    assert route(7, 3) == {3: 2, 4: 1}


def test_lock_of_a_killed_process_is_released() -> None:
    shared = SharedState(2)
    pid = os.fork()
    if not pid:
        with shared.locked():
            time.sleep(WAIT_S)
        os._exit(0)
    time.sleep(0.1)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    with shared.locked():
        assert shared.texts == 0


def test_metrics_of_an_ended_process_stay_in_the_sums_without_its_gauges() -> None:
    shared = SharedState(2)
    shared.index = 1
    shared.publish({REQUESTS.name: {"{a}": 2}, IN_FLIGHT.name: {"": 1}})
    shared.index = 0
    for _ in range(2):
        shared.retire(1, GAUGES)  # the second process of this place published nothing
    assert [each for each in shared.others() if each] == [{REQUESTS.name: {"{a}": 2}}]


def test_metrics_of_a_process_killed_within_a_write_are_those_before_it() -> None:
    shared = SharedState(2)
    shared.index = 1
    for value in range(3):
        shared.publish({REQUESTS.name: {"{a}": value}})

    class Killed(BaseException):
        pass

    class Torn:
        """Memory of which a write stops after the first bytes."""

        def __init__(self, memory: Any) -> None:
            self._memory = memory

        def __setitem__(self, place: slice, raw: bytes) -> None:
            self._memory[:12] = raw[:12]
            raise Killed

        def __getitem__(self, place: slice) -> Any:
            return self._memory[place]

    shared._metrics[1] = [Torn(each) for each in shared._metrics[1]]
    with pytest.raises(Killed):
        shared.publish({REQUESTS.name: {"{a}": 3}, IN_FLIGHT.name: {"": 1}})
    shared.index = 0
    assert {REQUESTS.name: {"{a}": 2}} in shared.others()


def test_statistics_of_processes_are_summed_once_all_have_the_routes(tmp_path: Path) -> None:
    paths = [router_stats_path(tmp_path / "routes", process) for process in range(2)]
    seen = BackendStats(requests=2, failed=1, first_token=(0.1,), said="it failed")
    write_router_stats(paths[0], RouterStats(5, {1: seen}, MirrorStats(sent=1)))
    write_router_stats(paths[1], RouterStats(4, {1: seen}))
    assert read_router_stats(paths[0]).generation == 4
    write_router_stats(paths[1], RouterStats(5, {1: replace(seen, said=""), 2: seen}, MirrorStats(sent=2)))
    found = read_router_stats(paths[0])
    assert (found.generation, found.shadow.sent, found.of(2)) == (5, 3, seen)
    assert found.of(1) == replace(seen, requests=4, failed=2, first_token=(0.1, 0.1))


def test_malformed_requests_do_not_fill_the_log(tmp_path: Path) -> None:
    with fake_triton() as fake, started(tmp_path, fake) as (_, _, config):
        for _ in range(20):
            with socket.create_connection((config.host, config.port), timeout=WAIT_S) as client:
                client.sendall(b"GARBAGE\r\n\r\n")
                assert client.recv(100).startswith(b"HTTP/1.1 400")
    assert 1 <= (tmp_path / "log").read_text().count("Invalid HTTP request") <= PROCESSES


def test_used_port_is_an_error_for_several_processes_too() -> None:
    sockets = listen("127.0.0.1", 0, 2)
    port = sockets[0].getsockname()[1]
    for processes in (1, 2):
        with pytest.raises(TrtspecError, match="in use"):
            listen("127.0.0.1", port, processes)
    for each in sockets:
        each.close()


@contextmanager
def started(
    tmp_path: Path, fake: Fake, **limits: float
) -> Iterator[tuple[str, subprocess.Popen[bytes], GatewayConfig]]:
    """Run a gateway of several processes; yields its URL, its process and its configuration."""
    (port,) = free_ports(1)
    tokenizer = make_tokenizer(tmp_path / "tokenizer")
    config = GatewayConfig(fake.address, port, "m", "tensorrt_llm", str(tokenizer), 200, 100, processes=PROCESSES)
    config = replace(config, routes_file=str(tmp_path / "routes"), limits=GatewayLimits(drain_s=2.0))
    write_routes(tmp_path / "routes", Routes(1, (Route(1, 100, config),)))
    write_config(config, tmp_path / "gateway.json")
    process = subprocess.Popen(gateway_command(tmp_path / "gateway.json"), stderr=(tmp_path / "log").open("wb"))
    try:
        wait_until(lambda: answers(ready_url(config)))
        yield base_url(config), process, config
        process.terminate()
        assert process.wait(WAIT_S) == 0, (tmp_path / "log").read_text()
    finally:
        process.kill()
        process.wait(WAIT_S)


def answers(url: str) -> bool:
    try:
        return requests.get(url, timeout=WAIT_S).status_code == 200
    except requests.ConnectionError:
        return False


def ask(url: str) -> int:
    body = {"model": "m", "prompt": "a", "max_tokens": 2}
    return requests.post(f"{url}/v1/completions", json=body, timeout=WAIT_S).status_code


def metrics(url: str) -> Counter[str]:
    """Return all samples of /metrics."""
    text = requests.get(f"{url}/metrics", timeout=WAIT_S).text
    return Counter({name: float(value) for name, value in re.findall(r"^(trtspec\S+) (\S+)$", text, re.MULTILINE)})


DURATIONS = 'trtspec_openai_request_duration_seconds_count{endpoint="/v1/completions"}'
COUNT = 'trtspec_openai_requests_total{endpoint="/v1/completions",status="200"}'


def test_processes_share_metrics_routes_and_the_end(tmp_path: Path) -> None:
    with fake_triton() as fake, started(tmp_path, fake) as (url, process, config):
        fake.serve = says("ab")
        with ThreadPoolExecutor(8) as pool:
            assert {*pool.map(ask, [url] * 40)} == {200}
        wait_until(lambda: metrics(url)[COUNT] == 40)  # a process counts a request after its last byte
        for _ in range(8):  # whatever process answers
            found = metrics(url)
            assert found[COUNT] == found[DURATIONS] == 40
            assert found['trtspec_openai_revision_requests_total{revision="1",outcome="ok"}'] == 40
            assert found["trtspec_openai_requests_in_flight"] == found["trtspec_openai_texts_in_flight"] == 0
        write_routes(
            tmp_path / "routes", Routes(2, (Route(1, 75, config), Route(2, 25, replace(config, fingerprint="other"))))
        )
        routes = router_stats_path(tmp_path / "routes")
        wait_until(lambda: read_router_stats(routes).generation == 2)
        with ThreadPoolExecutor(8) as pool:
            assert {*pool.map(ask, [url] * 40)} == {200}
        wait_until(lambda: read_router_stats(routes).of(1).requests + read_router_stats(routes).of(2).requests == 40)
        stats = read_router_stats(routes)
        assert [stats.of(revision).requests for revision in (1, 2)] == [30, 10]

        children = process_family(process.pid) - {process.pid}
        assert len(children) == PROCESSES
        killed = min(children)
        os.kill(killed, signal.SIGKILL)
        wait_until(lambda: len(process_family(process.pid) - {process.pid, killed}) == PROCESSES)
        wait_until(lambda: answers(ready_url(config)))
        assert {ask(url) for _ in range(8)} == {200}
        wait_until(lambda: metrics(url)[COUNT] == 88)  # those of the killed process, too


def test_gateway_whose_tokenizer_cannot_be_read_ends_with_an_error(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    config = GatewayConfig("127.0.0.1:1", port, "m", "tensorrt_llm", str(tmp_path / "no"), 200, 100, processes=2)
    write_config(config, tmp_path / "gateway.json")
    command = gateway_command(tmp_path / "gateway.json")
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode not in (0, 70)
    assert "no tokenizer.json" in done.stderr
    assert "Traceback" not in done.stderr
