# SPDX-License-Identifier: Apache-2.0
"""State and history of a deployment: a state file that is replaced atomically, and an append-only journal.

deployments/NAME/state.json      the last record; if it is lost, the record is reconstructed from the processes
deployments/NAME/journal.jsonl   one line per transition, with its time
deployments/NAME/server.log      the server's output; output of earlier servers in server.log.1 and so on
deployments/NAME/children.json   process specs of the sidecars
deployments/NAME/token           the token of the servers' control APIs
deployments/NAME/rollout.json    the last rollout; `rollout.ask` has a pending command for it
deployments/NAME/revisions/N/    a served or former revision (`trtspec.deployment.revision`), with its record's copy
"""

from __future__ import annotations

import json
import logging
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import Timeout

from trtspec.core.errors import DeployError
from trtspec.core.files import (
    describe_read_error,
    file_lock,
    parse_typed,
    private_directory,
    read_bounded,
    read_typed,
    replace_file,
)
from trtspec.core.paths import state_dir
from trtspec.core.ports import LOOPBACK
from trtspec.core.processes import ProcessStat, all_processes, is_alive, process_argv, session_processes
from trtspec.core.registry import did_you_mean
from trtspec.deployment.options import client_host
from trtspec.engine.simulated_acceptance import mark_method
from trtspec.serving.triton.server import EXIT_TIMEOUT_S, ServerPorts

SUPERVISOR = "trtspec.deployment.supervisor"
OPTION = re.compile(r"--(http|metrics|grpc-port|host)=(.*)")


@dataclass(frozen=True)
class SupervisorProcess:
    """A supervisor process of this user, described by its command-line arguments."""

    pid: int
    started: int
    name: str
    revision: int
    shm_prefix: str
    root: Path


def find_supervisors(directory: Path) -> Iterator[SupervisorProcess]:
    """Yield this user's supervisors of the deployments in a directory."""
    for process in all_processes():
        if (found := _supervisor(process)) and found.root.parent == directory:
            yield found


def record_fields(process: SupervisorProcess) -> dict[str, Any]:
    """Return the record fields that the command lines of a deployment's processes contain."""
    options: dict[str, str] = {}
    has_front, openai = False, 0
    for pid in session_processes(process.pid, process.started):
        argv = process_argv(pid)
        options |= {match[1]: match[2] for word in argv if (match := OPTION.fullmatch(word))}
        has_front = has_front or "trtspec.serving.front" in argv
        if "trtspec.serving.gateway" in argv:
            openai = _port_of_config(Path(argv[-1]))
    return {
        "pid": process.pid,
        "started": process.started,
        "revision": process.revision,
        "shm_prefix": process.shm_prefix,
        "http": _number(options.get("http")),
        "metrics": _number(options.get("metrics")),
        "grpc": _number(options.get("grpc-port")),
        "openai": openai,
        "front": has_front,
    } | ({"host": options["host"]} if "host" in options else {})


def _supervisor(process: ProcessStat) -> SupervisorProcess | None:
    argv = process_argv(process.pid)
    if SUPERVISOR not in argv or not process.is_living:
        return None
    try:
        if Path(f"/proc/{process.pid}").stat().st_uid != os.geteuid():
            return None
        name, revision, shm_prefix, _, _, root = argv[argv.index(SUPERVISOR) + 1 :]
        return SupervisorProcess(process.pid, process.started, name, int(revision), shm_prefix, Path(root))
    except (OSError, ValueError):  # it has ended, or another version of trtspec started it
        return None


def _port_of_config(path: Path) -> int:
    """Return the port in a gateway's configuration file; 0 if the file is unreadable."""
    try:
        return _number(str(json.loads(read_bounded(path, MAX_STATE_BYTES))["port"]))
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return 0


def _number(text: str | None) -> int:
    return int(text) if text and text.isdecimal() else 0


if TYPE_CHECKING:
    from trtspec.store.artifact import Artifact

log = logging.getLogger(__name__)

FORMAT_VERSION = 1
MAX_STATE_BYTES = 1 << 20
MAX_JOURNAL_BYTES = 64 << 20
STARTING = ("staged", "loaded", "smoke")
RUNNING = ("live", "restarting")
OVER = ("stopped", "failed")
STATE_FILE = "state.json"
COPY = "record.json"
MAX_PORT, MAX_PID = 65535, 1 << 31
MAX_TIME = 1 << 36  # in seconds, about 2,000 years
NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")


@dataclass(frozen=True)
class DeploymentRecord:
    """The state of one deployment.

    Attributes:
        state: staged, loaded, smoke, live, restarting, stopped or failed.
        pid: the supervisor; with `started` it identifies the process even after a reboot or a reused pid.
        manifest: SHA-256 of the artifact's manifest at deployment.
        since: start of the state, in seconds since the epoch.
        openai_host: bind address of the gateway; `host` if empty.
        restarts: number of restarts of the server.
        reason: cause of the last restart.
        beside: a sidecar's last failure.
        drain_s: seconds for open requests at shutdown.
        openai: port of the OpenAI gateway; 0 without one.
        revision: number of the artifact under this name.
        front: true if the HTTP ports belong to a front process (`trtspec.serving.front`).

    Fields that an earlier version did not record are "", 0 or false.
    """

    name: str
    state: str
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
    openai_host: str = ""
    restarts: int = 0
    reason: str = ""
    beside: str = ""
    drain_s: float = EXIT_TIMEOUT_S
    openai: int = 0
    revision: int = 0
    front: bool = False
    format_version: int = FORMAT_VERSION

    @property
    def is_running(self) -> bool:
        return is_alive(self.pid, self.started)

    @property
    def state_now(self) -> str:
        """Return the state, "dead" if its process is gone, or "starting" for staged, loaded and smoke."""
        if self.state not in (*STARTING, *RUNNING):
            return self.state
        if not self.is_running:
            return "dead"
        return self.state if self.state in RUNNING else "starting"

    @property
    def ports(self) -> ServerPorts:
        return ServerPorts(self.http, self.grpc, self.metrics, self.host)

    def bind_address(self, port_name: str) -> str:
        """Return the bind address of a port such as "http" or "openai"."""
        return (self.openai_host or self.host) if port_name == "openai" else self.host

    @property
    def endpoints(self) -> dict[str, str]:
        """Return the addresses by which this machine reaches the server."""
        host = client_host(self.host)
        entry = f"http://{client_host(self.bind_address('openai'))}:{self.openai}/v1"
        openai = {"openai": entry} if self.openai else {}
        return {
            "http": f"http://{host}:{self.http}",
            "grpc": f"{host}:{self.grpc}",
            "metrics": f"http://{host}:{self.metrics}/metrics",
        } | openai


@dataclass(frozen=True)
class JournalEntry:
    """A line of the journal: a transition of a revision at `time`, in seconds since the epoch.

    Earlier versions recorded neither process nor revision.
    """

    time: float
    state: str
    detail: str
    pid: int = 0
    revision: int = 0
    artifact: str = ""
    manifest: str = ""


def staged_record(name: str, artifact: Artifact, **fields: Any) -> DeploymentRecord:
    """Return the first record of a deployment of an artifact.

    `fields` are the ports and the fields that are specific to the target.
    """
    return DeploymentRecord(
        name=name,
        state="staged",
        artifact=str(artifact.root.absolute()),
        manifest=artifact.digest,
        backend=artifact.manifest.backend.name,
        method=mark_method(artifact.recipe.speculation.method, artifact.manifest.simulated_acceptance),
        **({"pid": 0, "started": None, "shm_prefix": ""} | fields),
    )


def deploy_document(record: DeploymentRecord, state: str = "") -> dict[str, Any]:
    """Return the document of `deploy --json`, by default with the recorded state."""
    return {
        "format_version": FORMAT_VERSION,
        "name": record.name,
        "state": state or record.state,
        "endpoints": record.endpoints,
        "host": record.host,
        "pid": record.pid,
        "revision": record.revision,
    }


def status_document(journal: DeploymentJournal, record: DeploymentRecord, state: str) -> dict[str, Any]:
    """Return the document of `status`: the fields of `deploy --json`, the artifact and the log file."""
    served = {"artifact": record.artifact, "manifest": record.manifest, "log_file": str(journal.log)}
    return deploy_document(record, state) | served


def deployment_names() -> list[str]:
    """Return the sorted names of all deployments, including running ones whose files were lost."""
    directory = state_dir() / "deployments"
    found = {path.parent.name for path in directory.glob(f"*/{STATE_FILE}")}
    found |= {process.name for process in find_supervisors(directory)}
    return sorted(name for name in found if NAME.fullmatch(name))


class DeploymentJournal:
    """The directory of one deployment, with its record, its journal and its logs.

    Raises DeployError if the name is invalid.
    """

    def __init__(self, name: str) -> None:
        if not NAME.fullmatch(name):
            raise DeployError(
                f"{name!r} is not a valid deployment name", hint="use a-z, 0-9, '.', '_' and '-', at most 63 characters"
            )
        self.name = name
        self.root = state_dir() / "deployments" / name
        self.log = self.root / "server.log"
        self.children = self.root / "children.json"

    def read(self) -> DeploymentRecord | None:
        """Return the last record, or None if the name was never deployed.

        If the file is lost or damaged and the deployment runs, the record is reconstructed from its processes. Raises
        DeployError if the file is damaged and the deployment does not run.
        """
        path = self.root / STATE_FILE
        try:
            return read_record(path)
        except FileNotFoundError:
            return self._running_record()
        except (OSError, ValueError) as error:
            if (found := self._running_record()) is not None:
                return found
            raise DeployError(
                f"the deployment's state cannot be read: {error}",
                where=str(path),
                hint="none of its processes is running; remove the file",
            ) from None

    def _running_record(self) -> DeploymentRecord | None:
        """Return the record of a running deployment from its supervisor and the copies in its revisions; else None."""
        process = next((each for each in find_supervisors(self.root.parent) if each.root == self.root), None)
        if process is None:
            return None
        records = []
        for path in self.root.glob(f"revisions/*/{COPY}"):
            with suppress(OSError, ValueError):
                records.append(read_record(path))
        own = [each for each in records if (each.pid, each.started) == (process.pid, process.started)]
        if own:
            return max(own, key=lambda each: each.since)
        last: dict[str, Any] = next((entry for entry in reversed(self.entries()) if entry["pid"] == process.pid), {})
        noted = {key: last[key] for key in ("artifact", "manifest") if key in last}
        lost = {"name": self.name, "state": last.get("state", "live"), "artifact": "", "detached": True}
        return DeploymentRecord(**(lost | noted | record_fields(process)))

    def read_existing(self) -> DeploymentRecord:
        """Return the last record; raises DeployError with the known names if the name was never deployed."""
        if record := self.read():
            return record
        names = deployment_names()
        raise DeployError(
            f"no deployment {self.name!r}; known: {', '.join(names) or 'none'}", hint=did_you_mean(self.name, names)
        )

    def write(self, record: DeploymentRecord, detail: str = "") -> DeploymentRecord:
        """Record a transition, first in the journal, then in the state file; return the record with its time."""
        private_directory(self.root)  # recreate it if it was removed
        record = replace(record, since=time.time())
        log.info("%s is %s, process %d %s", record.name, record.state, record.pid, detail)
        self.note(record, record.state, detail)
        self._put(record)
        return record

    def annotate(self, record: DeploymentRecord, detail: str) -> None:
        """Write a changed record and a journal entry, without a transition to another state."""
        self.note(record, record.state, detail)
        self._put(record)

    def _put(self, record: DeploymentRecord) -> None:
        state = json.dumps(asdict(record), indent=1).encode()
        place = self.root / "revisions" / str(record.revision)
        if place.is_dir():
            replace_file(place / COPY, state)
        # last, because its reader may immediately write the next record and its copy
        replace_file(self.root / STATE_FILE, state)

    def note(self, record: DeploymentRecord, state: str, detail: str = "") -> None:
        """Append an event of a revision to the journal without changing the deployment's state."""
        of = {key: getattr(record, key) for key in ("pid", "revision", "artifact", "manifest")}
        text = json.dumps({"time": time.time(), "state": state, "detail": detail} | of) + "\n"
        with (self.root / "journal.jsonl").open("ab+") as journal:
            size = journal.tell()
            journal.seek(max(0, size - 1))
            is_cut = journal.read(1) not in (b"", b"\n")  # a crash truncated the last line
            try:
                journal.write((b"\n" if is_cut else b"") + text.encode())
                journal.flush()
            except OSError:  # a full disk: remove the partial line
                os.ftruncate(journal.fileno(), size)
                raise

    def move(self, record: DeploymentRecord, state: str, detail: str = "") -> DeploymentRecord:
        """Record a transition to another state and return the new record."""
        return self.write(replace(record, state=state), detail)

    def forget(self, former: DeploymentRecord | None) -> None:
        """Restore the former record after a deployment that did not start; if it is None, remove the name."""
        if former is None:
            self.remove()
        else:
            self._put(former)

    def remove(self) -> None:
        """Remove all files of this name; the caller holds the lock."""
        gone = self.root.with_name(f".{self.name}.{secrets.token_hex(8)}")  # not a valid deployment name
        self.root.rename(gone)
        shutil.rmtree(gone)

    def entries(self) -> list[dict[str, Any]]:
        """Return the journal's entries, oldest first; lines truncated by a crash are skipped."""
        path = self.root / "journal.jsonl"
        try:
            whole, _, _ = read_bounded(path, MAX_JOURNAL_BYTES).rpartition(b"\n")
        except FileNotFoundError:
            return []
        except OSError as error:
            raise DeployError(describe_read_error(error), where=str(path), hint="move the file away") from None
        return [vars(entry) for line in whole.split(b"\n") if (entry := _parse_entry(line))]

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Context manager that locks the name while its server is started; raises DeployError if it is locked."""
        private_directory(self.root)
        try:
            with file_lock(self.root / "lock", timeout_s=0):
                yield
        except Timeout:
            raise DeployError(f"another process is deploying {self.name!r} right now") from None


@dataclass
class RunningDeployment:
    """A deployment that has answered its first request."""

    journal: DeploymentJournal
    record: DeploymentRecord

    def as_dict(self) -> dict[str, Any]:
        """Return the document of `deploy --json`, with `name`, `state`, `endpoints` and `pid`."""
        return deploy_document(self.record)

    def wait(self) -> None:
        """Block until a server of this process ends; return at once if it runs independently of this process.

        SIGINT and SIGTERM stop the server. Raises DeployError if the server ends on its own.
        """


def read_record(path: Path) -> DeploymentRecord:
    """Return the record in a file; raises OSError if it is unreadable, ValueError for invalid content."""
    record = read_typed(DeploymentRecord, path, MAX_STATE_BYTES)
    if not all(0 <= port <= MAX_PORT for port in (record.http, record.grpc, record.metrics, record.openai)):
        raise ValueError("a port is out of range")
    if not (0 <= record.since < MAX_TIME and 0 <= record.pid < MAX_PID and 0 <= record.drain_s < MAX_TIME):
        raise ValueError("a number is out of range")
    return record


def _parse_entry(line: bytes) -> JournalEntry | None:
    """Return an entry of the journal, or None for a truncated or invalid line."""
    try:
        entry = parse_typed(JournalEntry, line)
    except ValueError:
        return None
    return entry if 0 <= entry.time < MAX_TIME else None
