# SPDX-License-Identifier: Apache-2.0
"""Specifications of a deployment's processes, stored in a file so that they can be restarted."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from trtspec.core.files import read_bounded, replace_file
from trtspec.core.ports import LOOPBACK

MAX_BYTES = 1 << 20


@dataclass(frozen=True)
class ProcessSpec:
    """A process: its argv, additional environment variables and the URL of its health check.

    `start_s` limits the seconds until its first answer. `listens` maps port names to ports, bound at the address
    `host`.
    """

    name: str
    argv: Sequence[str]
    url: str
    environment: Mapping[str, str] = field(default_factory=dict)
    start_s: float = 300.0
    listens: Mapping[str, int] = field(default_factory=dict)
    host: str = LOOPBACK


def write_process_specs(path: Path, children: Sequence[ProcessSpec]) -> None:
    """Write the specs with mode 0600, because an environment may contain a secret."""
    replace_file(path, json.dumps([asdict(child) for child in children], indent=1).encode(), mode=0o600)


def read_process_specs(path: Path) -> list[ProcessSpec]:
    """Return the specs of a file, the server first."""
    return [ProcessSpec(**each) for each in json.loads(read_bounded(path, MAX_BYTES))]
