# SPDX-License-Identifier: Apache-2.0
"""Results of finished parts of long work, by all that they depend on: an ended command goes on behind them.

They lie in the cache until the whole work is done. A file that is damaged counts as absent.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trtspec import __version__
from trtspec.core.files import replace_file
from trtspec.core.paths import cache_dir
from trtspec.store.checksummed_json import load_sealed, seal

SCHEMA = "trtspec.finished/1"


class Finished:
    """The parts of one command's work; `found` counts those that an earlier run had done."""

    def __init__(self, command: str) -> None:
        self._root = cache_dir() / command
        self._used: list[Path] = []
        self.found = 0

    def get(self, depends_on: Any, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return a part that is there, or make and keep it; `depends_on` are JSON values, the machine is added."""
        whole = [__version__, platform.processor(), platform.node(), os.cpu_count(), depends_on]
        key = hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()
        path = self._root / f"{key}.json"
        self._used.append(path)
        if kept := load_sealed(SCHEMA, path):
            self.found += 1
            part: dict[str, Any] = kept["part"]
        else:
            part = make()
            self._root.mkdir(parents=True, exist_ok=True)
            replace_file(path, seal(SCHEMA, {"part": part}), mode=0o600)
        return part

    def forget(self) -> None:
        """Remove the parts that were used, at the end of the whole."""
        for path in self._used:
            path.unlink(missing_ok=True)
