# SPDX-License-Identifier: Apache-2.0
"""Discovery of running supervisors by their processes, for deployments whose state files were lost."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtspec.core.files import read_bounded
from trtspec.core.processes import session_processes, start_time

SUPERVISOR = "trtspec.deployment.supervisor"
MAX_ARGV_BYTES = 1 << 20
OPTION = re.compile(r"--(http|metrics|grpc-port|host)=(.*)")


@dataclass(frozen=True)
class SupervisorProcess:
    """A supervisor process of this user, described by its arguments."""

    pid: int
    started: int | None
    name: str
    revision: int
    shm_prefix: str
    root: Path


def find_supervisors(directory: Path) -> Iterator[SupervisorProcess]:
    """Yield this user's supervisors of the deployments below a directory."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (found := _supervisor(entry)) and found.root.parent == directory:
            yield found


def find_supervisor(root: Path) -> SupervisorProcess | None:
    """Return the supervisor of the deployment at `root`, or None."""
    return next((found for found in find_supervisors(root.parent) if found.root == root), None)


def record_fields(process: SupervisorProcess) -> dict[str, Any]:
    """Return the record fields that can be read from the arguments of a deployment's processes."""
    options: dict[str, str] = {}
    has_front, openai = False, 0
    for pid in session_processes(process.pid, process.started):
        argv = _argv(Path(f"/proc/{pid}"))
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


def _supervisor(entry: Path) -> SupervisorProcess | None:
    argv = _argv(entry)
    if SUPERVISOR not in argv:
        return None
    words = argv[argv.index(SUPERVISOR) + 1 :]
    try:
        if entry.stat().st_uid != os.geteuid():
            return None
        name, revision, shm_prefix, _, _, root = words
        pid = int(entry.name)
        return SupervisorProcess(pid, start_time(pid), name, int(revision), shm_prefix, Path(root))
    except (OSError, ValueError):  # it has ended, or another version of trtspec started it
        return None


def _argv(entry: Path) -> list[str]:
    try:
        with (entry / "cmdline").open("rb") as file:
            return file.read(MAX_ARGV_BYTES).decode(errors="replace").rstrip("\0").split("\0")
    except OSError:
        return []


def _port_of_config(path: Path) -> int:
    """Return the port in a gateway's configuration; 0 if it is unreadable."""
    try:
        return _number(str(json.loads(read_bounded(path, MAX_ARGV_BYTES))["port"]))
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return 0


def _number(text: str | None) -> int:
    return int(text) if text and text.isdecimal() else 0
