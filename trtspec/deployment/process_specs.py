# SPDX-License-Identifier: Apache-2.0
"""The processes of a deployment, as a file that says how each is started: read again by whoever starts them anew."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from trtspec.core.files import read_bounded, replace_file
from trtspec.core.ports import LOOPBACK

MAX_BYTES = 1 << 20


@dataclass(frozen=True)
class Child:
    """A process: its argv, what its environment has beside ours, and the HTTP address that it answers at.

    `start_s` bounds the seconds until its first answer. `listens` are its ports by name, at the address `host`.
    """

    name: str
    argv: Sequence[str]
    url: str
    environment: Mapping[str, str] = field(default_factory=dict)
    start_s: float = 300.0
    listens: Mapping[str, int] = field(default_factory=dict)
    host: str = LOOPBACK


def write_children(path: Path, children: Sequence[Child]) -> None:
    """Write a file that its user alone can read: an environment may hold a secret."""
    replace_file(path, json.dumps([asdict(child) for child in children], indent=1).encode(), mode=0o600)


def read_children(path: Path) -> list[Child]:
    """Return the children that were written, the server first."""
    return [Child(**each) for each in json.loads(read_bounded(path, MAX_BYTES))]
