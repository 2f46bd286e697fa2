# SPDX-License-Identifier: Apache-2.0
"""Health probes of a tritonserver: the states of its processes, and requests for one token."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from trtspec.core.errors import TrtspecError
from trtspec.core.processes import group_processes, group_zombies, is_alive, is_computing, process_state, start_time
from trtspec.deployment.health.policy import HealthSample, PendingProbe
from trtspec.serving.triton.client import Client

SMOKE_REQUEST = {"text_input": "Hello", "max_tokens": 1}
STUB = "triton_python_backend_stub"
SERVER = "tritonserver"
ASK_EVERY_S = 1.0
LONGEST_ANSWER_S = 3600.0
READY_TIMEOUT_S = 1.0
UNOBSERVED_MODEL = "a model"  # a model whose process ended before it was observed
GONE_S = 1.0  # maximum gap between two processes of a loading model
BUSY = "answered 503"  # the queue is full


class RequestProbe:
    """Requests one token repeatedly in a thread, one request at a time so that it adds little load."""

    def __init__(self, url: str) -> None:
        self.waiting = PendingProbe()
        self.refusals, self.said = 0, ""
        self._client, self._statistics = Client.at(url, LONGEST_ANSWER_S), Client.at(url, READY_TIMEOUT_S)
        self._over = threading.Event()
        threading.Thread(target=self._run, name="probe", daemon=True).start()

    def close(self) -> None:
        self._over.set()

    def _run(self) -> None:
        while not self._over.wait(ASK_EVERY_S):
            self.waiting.record_request(time.monotonic())
            try:
                self._client.generate(SMOKE_REQUEST)
            except TrtspecError as error:
                self._refused(error.message)
            else:
                self.refusals = 0
                self.waiting.record_answer()

    def _refused(self, said: str) -> None:
        if BUSY in said:
            self.refusals = 0
            self.waiting.refused_as_full(time.monotonic(), self._progress())
        else:
            self.said = said
            self.refusals += 1
            self.waiting.record_answer()

    def _progress(self) -> int | None:
        try:
            return count_progress(self._statistics.statistics())
        except TrtspecError:
            return None


def count_progress(statistics: Mapping[str, Any]) -> int | None:
    """Return the number of executed and answered requests plus sent responses of a server's models.

    Rejected requests are not counted. Returns None for statistics in another format.
    """
    try:
        done: int = sum(
            model["execution_count"]
            + model["inference_stats"]["success"]["count"]
            + sum(each["success"]["count"] for each in model.get("response_stats", {}).values())
            for model in statistics["model_stats"]
        )
    except (KeyError, TypeError, AttributeError):
        return None
    return done


ModelProcesses = dict[tuple[int, int | None], str]  # (pid, start time) to model


class StartupProbe:
    """Observes the processes of a server that is loading its models; sends no requests."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self.stubs: ModelProcesses = {}
        self._gone: dict[str, float] = {}  # models without a process, and since when

    def look(self, *, is_ready: bool) -> HealthSample:
        """Return a health sample of a running server.

        A model may have several processes in turn while it loads. It has died if no new one starts within GONE_S, or if
        the server reports ready without it: tritonserver waits forever for a process that was killed during loading.
        """
        pids, now = group_processes(self._pid), time.monotonic()
        running = model_processes(pids)
        gone = {*self.stubs.values()} - {*running.values()}
        if {*group_zombies(self._pid, STUB)} - {pid for pid, _ in self.stubs}:
            gone.add(UNOBSERVED_MODEL)
        self._gone = {model: self._gone.get(model, now) for model in gone}
        died = {model for model, since in self._gone.items() if is_ready or now - since >= GONE_S}
        self.stubs = running if is_ready and not died else self.stubs | running
        return HealthSample(now, died=died, stopped=stopped_processes(pids))


class LivenessProbe:
    """Observes a server's process group and its answers; `stubs` are the known model processes."""

    def __init__(self, pid: int, url: str, stubs: ModelProcesses) -> None:
        self._pid = pid
        self._client = Client.at(url, READY_TIMEOUT_S)
        self._prober = RequestProbe(url)
        self._stubs = {**stubs}

    def close(self) -> None:
        self._prober.close()

    def look(self, ended: int | None) -> HealthSample:
        """Return a health sample; `ended` is the server's exit status, None while it runs."""
        pids = group_processes(self._pid)
        self._stubs |= model_processes(pids)
        waits_since = self._prober.waiting.since
        return HealthSample(
            time.monotonic(),
            ended,
            self._died() if ended is None else (),
            stopped_processes(pids),
            waits_since,
            waits_since is not None and any(is_computing(pid) for pid in pids),
            self._prober.refusals,
            self._prober.said,
            self._prober.waiting.is_full,
        )

    def _died(self) -> list[str]:
        """Return the models whose process is gone although they were not unloaded."""
        gone = {process: model for process, model in self._stubs.items() if not is_alive(*process)}
        died = [model for model in gone.values() if self._client.is_ready(model)]
        for process, model in gone.items():
            if model not in died:
                del self._stubs[process]
        return died


def model_processes(pids: Iterable[int]) -> ModelProcesses:
    """Return the processes among `pids` that run models."""
    return {(pid, start_time(pid)): model for pid in pids if (model := process_model(pid))}


def stopped_processes(pids: Iterable[int]) -> tuple[str, ...]:
    """Return the names of a server's processes in the stopped state."""
    return tuple(process_model(pid) or SERVER for pid in pids if process_state(pid) == "T")


def process_model(pid: int) -> str:
    """Return the model that a Python stub runs (argv: STUB FOLDER/MODEL/VERSION/model.py ...); "" for others."""
    try:
        argv = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return ""
    return Path(argv[1]).parent.parent.name if len(argv) > 1 and argv[0].endswith(STUB) else ""
