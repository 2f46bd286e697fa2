# SPDX-License-Identifier: Apache-2.0
"""Checkpoint long work: cache the results of completed parts by their inputs, so that an interrupted command resumes.

Results stay in the cache directory until the work is complete. Damaged files are ignored.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trtspec.core.files import replace_file
from trtspec.core.paths import cache_dir
from trtspec.core.version import __version__
from trtspec.store.checksummed_json import dump_checksummed, load_checksummed

SCHEMA = "trtspec.finished/1"


class ResultCache:
    """The completed parts of one command's work; `found` counts those from earlier runs."""

    def __init__(self, command: str) -> None:
        self._root = cache_dir() / command
        self._used: list[Path] = []
        self.found = 0

    def get(self, depends_on: Any, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return a cached part, or make and cache it; the key is the JSON values `depends_on` plus the machine."""
        whole = [__version__, platform.processor(), platform.node(), os.cpu_count(), depends_on]
        key = hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()
        path = self._root / f"{key}.json"
        self._used.append(path)
        if kept := load_checksummed(SCHEMA, path):
            self.found += 1
            part: dict[str, Any] = kept["part"]
        else:
            part = make()
            self._root.mkdir(parents=True, exist_ok=True)
            replace_file(path, dump_checksummed(SCHEMA, {"part": part}), mode=0o600)
        return part

    def forget(self) -> None:
        """Remove the used parts after the work is complete."""
        for path in self._used:
            path.unlink(missing_ok=True)
