# SPDX-License-Identifier: Apache-2.0
"""Run a repository's server as in a deployment: supervised, and restarted when it exits."""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.serving.triton.serving import Served
from trtspec.core.ports import free_ports
from trtspec.core.processes import start_time, wait_until
from trtspec.deployment.health import STOPPED_S, FailureDetector, HealthSample
from trtspec.deployment.journal import DeploymentJournal, DeploymentRecord
from trtspec.deployment.process_group import ProcessSpec, write_process_specs
from trtspec.deployment.revision import new_token, revision_dir
from trtspec.deployment.server_process import LOOK_EVERY_S, ManagedServer, ShouldStop
from trtspec.deployment.supervisor import Supervisor
from trtspec.serving.triton.client import Client
from trtspec.serving.triton.server import ServerPorts, find_server, server_command

NAME = "kept"
LOADING_S = 240.0  # on a busy machine; a few seconds otherwise
APPEND = 'exec "$@" >> "$0" 2>&1'


@dataclass(frozen=True)
class Restart:
    """The server was found to have exited at `at` of the monotonic clock, and was ready again at `back`."""

    reason: str
    at: float
    back: float


@dataclass(frozen=True)
class Kept:
    """A supervised server."""

    served: Served
    journal: DeploymentJournal

    def is_back(self) -> bool:
        """Return whether the server is running, or recovers in time."""
        return wait_until(
            lambda: self.served.client.is_ready() and self.journal.read_existing().state == "live", LOADING_S
        )

    def restarts(self) -> list[Restart]:
        """Return the server's exits; the last one may still be without recovery."""
        clock, entries = time.monotonic() - time.time(), self.journal.entries()
        ends = [(each["detail"], each["time"] + clock) for each in entries if each["state"] == "restarting"]
        lives = [each["time"] + clock for each in entries if each["state"] == "live"]
        return [Restart(why, at, next((time for time in lives if time > at), time.monotonic())) for why, at in ends]


class EndKeeper(ManagedServer):
    """Treats only the exit of the server as a fault; models that are killed on purpose are reloaded by the test."""

    def is_open(self) -> bool:
        """Return True, because models are reloaded with the server's control API."""
        return False

    def fault(self, over: ShouldStop, stopped_s: float = STOPPED_S) -> str:
        judge = FailureDetector(stopped_s)
        while not over():
            if fault := judge.fault(HealthSample(time.monotonic(), self.ended)):
                return fault
            time.sleep(LOOK_EVERY_S)
        return ""


@contextmanager
def kept(root: Path, models: Path) -> Iterator[Kept]:
    """Serve all models in `models`; files are written to `root`."""
    os.environ |= {"TRTSPEC_STATE": str(root / "state"), "TRTSPEC_CACHE": str(root / "cache")}
    journal, ports, prefix = DeploymentJournal(NAME), ServerPorts(*free_ports(3)), f"trtspec_{secrets.token_hex(8)}_"
    served = Served(Client(f"http://127.0.0.1:{ports.http}"), ports.grpc, journal.log, ports.metrics)
    supervisor = Supervisor(journal, _keeper(journal, models, ports, prefix))
    pid = os.getpid()
    record = DeploymentRecord(
        NAME, "staged", str(models), pid, start_time(pid), *_numbers(ports), prefix, False, drain_s=0
    )
    journal.write(record)
    watching = threading.Thread(target=supervisor.run, name="supervisor")
    watching.start()
    try:
        if not wait_until(lambda: served.client.is_ready() or not watching.is_alive(), LOADING_S):
            raise SystemExit(f"the server did not start: {journal.log}")
        journal.move(record, "live")
        time.sleep(2 * LOOK_EVERY_S)  # until the supervisor has noticed the start, an exit counts as a failed start
        yield Kept(served, journal)
    finally:
        supervisor.asked.set()
        watching.join(LOADING_S)


def _keeper(journal: DeploymentJournal, models: Path, ports: ServerPorts, prefix: str) -> ManagedServer:
    place, server = revision_dir(journal, 1), find_server()
    place.mkdir(parents=True)
    journal.log.touch()
    new_token(journal.root)
    command = server_command(server, models, ports, model="*", shm_prefix=prefix)
    argv = ("sh", "-c", APPEND, str(journal.log), *command)
    child = ProcessSpec("tritonserver", argv, f"http://127.0.0.1:{ports.http}", server.environment, LOADING_S)
    write_process_specs(place / "server.json", [child])
    return EndKeeper(journal.root, place, prefix)


def _numbers(ports: ServerPorts) -> tuple[int, int, int]:
    return ports.http, ports.grpc, ports.metrics
