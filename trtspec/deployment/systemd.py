# SPDX-License-Identifier: Apache-2.0
"""Systemd units that serve an artifact as a dynamic user in a sandbox.

A unit runs `trtspec deploy` with the given options. Its state and cache are in the unit's own directories.
"""

from __future__ import annotations

import stat
import sys
from collections.abc import Mapping, Sequence
from ipaddress import IPv4Address
from itertools import islice
from pathlib import Path

from trtspec.serving.triton.server import EXIT_TIMEOUT_S
from trtspec.store.artifact_paths import MANIFEST

PRIVATE = (Path("/tmp"), Path("/var/tmp"))
MOVE = "move it to a directory such as /opt or /srv"
VARIABLES = ("TRTSPEC_OPENAI_KEYS", "TRTSPEC_TRITONSERVER")  # environment variables that a deployment reads
MOST_FILES = 10_000  # maximum number of an artifact's files whose permissions are checked
STOP_TIMEOUT_S = 50  # time after the drain time for all processes to end
# No MemoryDenyWriteExecute: torch and engines compile at run time. ProtectHome=read-only: the virtual environment may
# be in a home directory.
UNIT = """\
[Unit]
Description=trtspec: {artifact}
After=network.target

[Service]
Type=exec
ExecStart={command}
Restart=on-failure
RestartSec=5
TimeoutStopSec={stop_timeout_s}
SuccessExitStatus=130
KillMode=mixed

DynamicUser=yes
StateDirectory=trtspec
StateDirectoryMode=0700
CacheDirectory=trtspec
CacheDirectoryMode=0700
Environment=TRTSPEC_STATE=%S/trtspec TRTSPEC_CACHE=%C/trtspec
UMask=0077

CapabilityBoundingSet=
DevicePolicy=closed
DeviceAllow=char-nvidia* rw
{addresses}LockPersonality=yes
NoNewPrivileges=yes
PrivateTmp=yes
ProcSubset=all
ProtectClock=yes
ProtectControlGroups=yes
ProtectHome=read-only
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
ProtectProc=invisible
ProtectSystem=strict
RemoveIPC=yes
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX AF_NETLINK
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service

[Install]
WantedBy=multi-user.target
"""
ONLY_LOCAL = "IPAddressDeny=any\nIPAddressAllow=localhost\n"


def render_unit(
    artifact: Path, host: str, options: Sequence[str], drain_s: int | None = None, openai_host: str = ""
) -> str:
    """Return the text of a unit that runs `trtspec deploy` on an artifact with `options`, bound to `host`.

    `drain_s` (seconds) and `openai_host` (the bind address of the OpenAI gateway) must equal the values in `options`,
    if any.
    """
    place = str(artifact.absolute())
    argv = [sys.executable, "-m", "trtspec", "deploy", place, "--host", host, *options]
    return UNIT.format(
        artifact=" ".join(place.replace("%", "%%").split()),
        command=" ".join(map(_quoted, argv)),
        addresses=ONLY_LOCAL if all(IPv4Address(each).is_loopback for each in (host, openai_host or host)) else "",
        stop_timeout_s=(drain_s or EXIT_TIMEOUT_S) + STOP_TIMEOUT_S,
    )


def unit_warnings(artifact: Path, environment: Mapping[str, str]) -> list[str]:
    """Return warnings about files that the unit cannot read and variables that it does not get, with fixes."""
    package = Path(__file__).parents[1]
    needed = {
        "the artifact": artifact.absolute(),
        "Python": Path(sys.executable).absolute(),
        "the environment of Python": Path(sys.prefix),
        "the base Python of the environment": Path(sys.base_prefix),
        "trtspec": package,
    }
    found: dict[str, list[str]] = {}
    for what, path in needed.items():
        if why := _hidden(path) or _hidden(path.resolve()) or _unreadable(path):
            found.setdefault(why, []).append(f"{what} ({path})")
    warnings = [f"the unit cannot read {', '.join(whats)}: {why}" for why, whats in found.items()]
    missing = [name for name in VARIABLES if environment.get(name)]
    if missing:
        names = ", ".join(missing)
        fix = "`systemctl edit` the unit and add EnvironmentFile= with a file that only root can read"
        warnings.append(f"the unit does not get {names} of this shell: {fix}")
    return warnings


def _hidden(path: Path) -> str:
    """Return the reason and the fix if the unit's private /tmp hides a path, else ""."""
    for place in PRIVATE:
        if path.is_relative_to(place):
            return f"{place} is private to the unit (PrivateTmp=yes); {MOVE} and print the unit again"
    return ""


def _unreadable(path: Path) -> str:
    """Return the reason and the fix if another user, as with DynamicUser=yes, cannot read a path, else ""."""
    place = path.resolve()
    for directory in reversed(place.parents):
        if not _has(directory, stat.S_IXOTH):
            fix = MOVE if directory == Path("/root") else f"{MOVE}, or grant access: chmod o+x {directory}"
            return f"other users may not enter {directory} (DynamicUser=yes); {fix}"
    inside = islice(place.rglob("*"), MOST_FILES) if (place / MANIFEST).exists() else ()
    for each in (place, *inside):
        if not _has(each, stat.S_IROTH | (stat.S_IXOTH if each.is_dir() else 0)):
            return f"other users may not read {each} (DynamicUser=yes); chmod -R o+rX {place}"
    return ""


def _has(path: Path, bits: int) -> bool:
    """Return True if other users have these permissions, or if the path is missing, which is reported elsewhere."""
    try:
        return path.stat().st_mode & bits == bits
    except OSError as error:
        return not isinstance(error, PermissionError)


def _quoted(word: str) -> str:
    """Quote a word of a command line for systemd, which expands % and $ even within quotes."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$").replace("\n", "\\n")
    return f'"{escaped}"' if escaped != word or " " in word or not word else word
