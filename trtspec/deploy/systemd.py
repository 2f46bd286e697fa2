# SPDX-License-Identifier: Apache-2.0
"""A systemd unit that serves an artifact: by a user that exists while it runs, and that writes nowhere else.

What it is told is what `trtspec deploy` was told; state and cache lie in directories of the unit's own.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from ipaddress import IPv4Address
from pathlib import Path

from trtspec.triton.server import EXIT_TIMEOUT_S

STOP_TIMEOUT_S = 50  # beyond what open requests get: until all has ended that was told to
# No MemoryDenyWriteExecute: torch and engines compile while they run. ProtectHome: an environment may lie there.
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


def render_unit(artifact: Path, host: str, options: Sequence[str], drain_s: int | None = None) -> str:
    """Return the unit that runs `trtspec deploy` on an artifact with `options`, listening at `host`.

    `drain_s` is what open requests get by these options, None where they leave that out.
    """
    place = str(artifact.absolute())
    argv = [sys.executable, "-m", "trtspec", "deploy", place, "--host", host, *options]
    return UNIT.format(
        artifact=_line(place),
        command=" ".join(map(_quoted, argv)),
        addresses=ONLY_LOCAL if IPv4Address(host).is_loopback else "",
        stop_timeout_s=(drain_s or EXIT_TIMEOUT_S) + STOP_TIMEOUT_S,
    )


def _quoted(word: str) -> str:
    """Return a word of a command line as systemd reads it, which expands % and $ even within quotes."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$").replace("\n", "\\n")
    return f'"{escaped}"' if escaped != word or " " in word or not word else word


def _line(text: str) -> str:
    return " ".join(text.replace("%", "%%").split())
