# SPDX-License-Identifier: Apache-2.0
"""Ports of a deployment on this machine: requested, former or default ports, or the next free ones.

Triton binds its ports only after loading its models, possibly minutes later. Until then, a reservation file and the
records of the other deployments prevent two deployments from choosing the same port.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from filelock import FileLock, Timeout

from trtspec.core.errors import DeployError, TrtspecError
from trtspec.core.files import private_directory, read_bounded, replace_file
from trtspec.core.paths import state_dir
from trtspec.core.ports import bind_refusal, describe_owner, free_ports, listening_sockets, process_sockets
from trtspec.core.processes import is_alive, start_time
from trtspec.deployment.journal import RUNNING, STARTING, DeploymentJournal, DeploymentRecord, deployment_names
from trtspec.deployment.options import DEFAULT_PORTS, PORTS, DeployOptions, check_bindable
from trtspec.deployment.process_group import ProcessSpec
from trtspec.deployment.rollout.state import active_rollout
from trtspec.deployment.target import find_target

RESERVATION, LOCK = "ports.json", ".ports.lock"
MAX_RESERVATION_BYTES = 1 << 16
LOCK_S = 30.0  # the lock is held only while four ports are chosen
MAX_PORTS_TRIED = 200  # ports tried from the wanted one upward before any free port is used


class PortInUse(DeployError):
    """Raised if another process listens on a port of a server that is being started.

    `which` is the port's name in PORTS.
    """

    def __init__(self, message: str, which: str) -> None:
        super().__init__(message, hint=_other_port(which))
        self.which = which


@contextmanager
def reserved_ports(
    journal: DeploymentJournal,
    options: DeployOptions,
    names: Sequence[str] = PORTS,
    former: Mapping[str, int] | None = None,
) -> Iterator[dict[str, int]]:
    """Context manager that yields {name: port} as chosen by `choose_ports`.

    Other deployments cannot choose these ports until the block ends.
    """
    root = private_directory(state_dir() / "deployments")
    path = journal.root / RESERVATION
    try:
        with FileLock(root / LOCK, timeout=LOCK_S):
            chosen = choose_ports(options, names, former, reserved_elsewhere())
            note = {"pid": os.getpid(), "started": start_time(os.getpid()), "ports": [*chosen.values()]}
            replace_file(path, json.dumps(note).encode())
    except Timeout:
        raise DeployError("another deployment holds the port lock", hint="try again") from None
    try:
        yield chosen
    finally:
        path.unlink(missing_ok=True)


def choose_ports(
    options: DeployOptions,
    names: Sequence[str] = PORTS,
    former: Mapping[str, int] | None = None,
    reserved: Mapping[int, str] | None = None,
) -> dict[str, int]:
    """Choose a port for each name in `names`; raises DeployError if a requested port is not available.

    A requested port must be free. Otherwise the name's former port is used, or the default one, or the next free one
    above it, which is reported as an event. `reserved` maps ports of other deployments to the deployment's name.
    """
    check_bindable(options.host)
    check_bindable(options.bind_address("openai"))
    reserved, former = reserved or {}, former or {}
    given = [*options.ports.values()]
    chosen: dict[str, int] = {}
    for name, port in options.ports.items():
        if not 0 < port < 65536 or given.count(port) > 1:
            raise DeployError(f"{name} port {port} cannot be used", hint="choose different ports from 1 to 65535")
        if refused := _refused(port, options.bind_address(name), reserved):
            raise DeployError(f"{name} port {port} {refused}", hint=_other_port(name))
    for name in names:
        if name in options.ports:
            chosen[name] = options.ports[name]
            continue
        wanted = former.get(name) or DEFAULT_PORTS[name]
        avoided = {*given, *chosen.values(), *(port for other, port in DEFAULT_PORTS.items() if other != name)}
        avoided -= {wanted} - {*given, *chosen.values()}
        chosen[name] = _next_free(wanted, options.bind_address(name), reserved, avoided)
        if chosen[name] != wanted:
            why = _refused(wanted, options.bind_address(name), reserved) or "is already used by this deployment"
            options.on_event("ports", f"{wanted} {why}, using {chosen[name]} for {name}")
    return chosen


def reserved_elsewhere() -> dict[int, str]:
    """Return the ports that this user's deployments have bound or will bind, mapped to the deployment's name."""
    found: dict[int, str] = {}
    for name in deployment_names():
        with suppress(TrtspecError):  # skip unreadable records
            journal = DeploymentJournal(name)
            record = journal.read()
            rollout = active_rollout(journal, record)
            for each in (record, rollout.record if rollout else None):
                if each and _may_bind(each):
                    ports = (each.http, each.grpc, each.metrics, each.openai)
                    found |= dict.fromkeys(ports, f"the deployment {name!r}")
    for path in (state_dir() / "deployments").glob(f"*/{RESERVATION}"):
        with suppress(OSError, ValueError, KeyError, TypeError):
            note = json.loads(read_bounded(path, MAX_RESERVATION_BYTES))
            if is_alive(note["pid"], note["started"]):
                found |= dict.fromkeys(note["ports"], f"the deployment {path.parent.name!r}")
    found.pop(0, None)
    return found


def former_ports(record: DeploymentRecord | None, target: str, options: DeployOptions) -> dict[str, int]:
    """Return the ports, by name, of the last deployment to the same target at the same addresses."""
    if record is None or record.target != target:
        return {}
    had = {"http": record.http, "grpc": record.grpc, "metrics": record.metrics, "openai": record.openai}
    return {
        name: port for name, port in had.items() if port and options.bind_address(name) == record.bind_address(name)
    }


def conflicting_port(child: ProcessSpec, pids: Collection[int], *, ended: bool = False) -> PortInUse | None:
    """Return an error for a port of `child` on which a process other than `pids` listens, or None.

    With `ended`, a port that is bound without listening counts too.
    """
    for name, port in child.listens.items():
        foreign = listening_sockets(port, child.host)
        if foreign:
            foreign -= {inode for pid in pids for inode in process_sockets(pid)}
        if foreign:
            return PortInUse(f"{name} port {port} is in use{describe_owner(foreign)}", name)
        if ended and (refused := bind_refusal(port, child.host)):
            return PortInUse(f"{name} port {port} {refused}", name)
    return None


def as_port_in_use(reason: str) -> PortInUse | None:
    """Convert the reason of a failed start, as recorded by a supervisor, to PortInUse; None for other reasons."""
    name, _, what = reason.partition(" port ")
    return PortInUse(reason, name) if name in PORTS and " is in use" in what else None


def _may_bind(record: DeploymentRecord) -> bool:
    return record.state in (*STARTING, *RUNNING) and find_target(record.target).holds_ports(record)


def _refused(port: int, host: str, reserved: Mapping[int, str]) -> str:
    """Return the reason why a port is unavailable; "" if it is available."""
    if refused := bind_refusal(port, host):
        return refused if " by " in refused or port not in reserved else f"is in use by {reserved[port]}"
    return f"is reserved for {reserved[port]}" if port in reserved else ""


def _next_free(wanted: int, host: str, reserved: Mapping[int, str], avoided: Collection[int]) -> int:
    """Return the first free port from `wanted` on, or any free one if MAX_PORTS_TRIED ports are taken."""
    for port in range(wanted, min(wanted + MAX_PORTS_TRIED, 65536)):
        if port not in avoided and not _refused(port, host, reserved):
            return port
    return next(port for port in free_ports(len(avoided) + 1, host) if port not in avoided and port not in reserved)


def _other_port(name: str) -> str:
    return f"choose another with --{name}-port, or omit the option to use the next free port"
