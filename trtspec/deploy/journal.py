# SPDX-License-Identifier: Apache-2.0
"""What is known of a deployment: a state that is replaced whole, and a journal that only grows.

deployments/NAME/state.json      the last Record
deployments/NAME/journal.jsonl   one line a transition, with its time
deployments/NAME/server.log      what the server said
deployments/NAME/artifact/       what is served: a copy of the models, links to the rest
"""

from __future__ import annotations

import json
import logging
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from filelock import FileLock, Timeout

from trtspec.deploy.address import reachable
from trtspec.errors import DeployError
from trtspec.files import read_bounded, replace_file
from trtspec.paths import state_dir
from trtspec.registry import did_you_mean
from trtspec.system import LOOPBACK, is_alive
from trtspec.triton.server import Ports

log = logging.getLogger(__name__)

FORMAT_VERSION = 1
MAX_STATE_BYTES = 1 << 20
STARTING = ("staged", "loaded", "smoke")
NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")


@dataclass(frozen=True)
class Record:
    """One deployment and the target that it runs on; `manifest` is the SHA-256 of the artifact's when it was deployed.

    `pid` and `started` together name its process, also after a reboot or a reused pid. `since` is when the state began,
    in seconds of the epoch. What was recorded by an earlier version is "" or 0 where that did not note it.
    """

    name: str
    state: str  # staged, loaded, smoke, live, stopped, failed
    artifact: str
    pid: int
    started: int | None
    http: int
    grpc: int
    metrics: int
    shm_prefix: str
    detached: bool
    target: str = "local"
    manifest: str = ""
    backend: str = ""
    method: str = ""
    since: float = 0.0
    host: str = LOOPBACK
    format_version: int = FORMAT_VERSION

    @property
    def is_running(self) -> bool:
        return is_alive(self.pid, self.started)

    @property
    def state_now(self) -> str:
        """Return the state as its process has it: live, starting, stopped, failed, or dead where it should run."""
        if self.state not in (*STARTING, "live"):
            return self.state
        if not self.is_running:
            return "dead"
        return "live" if self.state == "live" else "starting"

    @property
    def ports(self) -> Ports:
        return Ports(self.http, self.grpc, self.metrics, self.host)

    @property
    def endpoints(self) -> dict[str, str]:
        """Return addresses by which this machine reaches the server."""
        host = reachable(self.host)
        return {
            "http": f"http://{host}:{self.http}",
            "grpc": f"{host}:{self.grpc}",
            "metrics": f"http://{host}:{self.metrics}/metrics",
        }


def deployment_names() -> list[str]:
    """Return the names that were ever deployed, sorted."""
    found = (path.parent.name for path in (state_dir() / "deployments").glob("*/state.json"))
    return sorted(name for name in found if NAME.fullmatch(name))


class DeploymentJournal:
    """The directory of one deployment."""

    def __init__(self, name: str) -> None:
        if not NAME.fullmatch(name):
            raise DeployError(f"{name!r} is no name of a deployment", hint="a-z, 0-9, '.', '_' and '-', at most 63")
        self.name = name
        self.root = state_dir() / "deployments" / name
        self.log = self.root / "server.log"

    def read(self) -> Record | None:
        """Return the last record; None where this name was never deployed."""
        path = self.root / "state.json"
        try:
            document = json.loads(read_bounded(path, MAX_STATE_BYTES))
            known = {field.name for field in fields(Record)}
            return Record(**{key: value for key, value in document.items() if key in known})
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise DeployError(
                f"the deployment's state cannot be read: {error}", where=str(path), hint="remove the file"
            ) from None

    def known(self) -> Record:
        """Return the last record; a name that was never deployed is an error that lists those that were."""
        if record := self.read():
            return record
        names = deployment_names()
        raise DeployError(
            f"no deployment {self.name!r}; known: {', '.join(names) or 'none'}", hint=did_you_mean(self.name, names)
        )

    def write(self, record: Record, detail: str = "") -> Record:
        """Note a transition: first in the journal, then as the state."""
        record = replace(record, since=time.time())
        log.info("%s is %s, process %d %s", record.name, record.state, record.pid, detail)
        line = {"time": record.since, "state": record.state, "pid": record.pid, "detail": detail}
        with (self.root / "journal.jsonl").open("a") as journal:
            journal.write(json.dumps(line) + "\n")
        state = json.dumps(asdict(record), indent=1).encode()
        replace_file(self.root / "state.json", state, self.root / f"state.json.{os.getpid()}")
        return record

    def move(self, record: Record, state: str, detail: str = "") -> Record:
        """Note that a deployment came into another state."""
        return self.write(replace(record, state=state), detail)

    def entries(self) -> list[dict[str, Any]]:
        """Return the journal; a last line that was cut off by a crash is left out."""
        path = self.root / "journal.jsonl"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the name while a server of it is being started."""
        self.root.mkdir(parents=True, exist_ok=True)
        try:
            with FileLock(self.root / "lock", timeout=0):
                yield
        except Timeout:
            raise DeployError(f"another process is deploying {self.name!r} right now") from None
