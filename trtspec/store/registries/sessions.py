# SPDX-License-Identifier: Apache-2.0
"""States of interrupted uploads, so that a killed push continues: private files in the cache, kept for SESSION_DAYS."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from trtspec.core.files import file_lock, private_directory, replace_file
from trtspec.core.paths import cache_dir
from trtspec.store.digest import compute_digest, dump_checksummed, load_checksummed

SESSION_DAYS = 7
SESSION_SCHEMA = "trtspec.upload/2"


class UploadSession:
    """The state of an interrupted upload of one content to one repository; one process uses it at a time.

    `state` is the document that the location kept last, or empty. On a full disk, and if another process uploads the
    same content, the state is not kept and the upload cannot be continued after a crash.
    """

    def __init__(self, place: str, blake3: str) -> None:
        from filelock import Timeout

        key = compute_digest("trtspec.upload", (place, blake3))
        self._path: Path | None = None
        self._lock = None
        self.state: Mapping[str, Any] = {}
        try:
            folder = private_directory(cache_dir() / "uploads")
            lock = file_lock(folder / f"{key}.lock", timeout_s=0)
            lock.acquire()
        except (OSError, Timeout):
            return
        self._lock, self._path = lock, folder / f"{key}.json"
        self.state = dict((load_checksummed(SESSION_SCHEMA, self._path) or {"state": {}})["state"])

    def keep(self, state: Mapping[str, Any]) -> None:
        if self._path and state != self.state:
            with suppress(OSError):
                replace_file(self._path, dump_checksummed(SESSION_SCHEMA, {"state": state}), mode=0o600, durable=False)
        self.state = dict(state)

    def forget(self) -> None:
        self.state = {}
        if self._path:
            self._path.unlink(missing_ok=True)

    def close(self) -> None:
        if self._lock and self._path:
            if not self._path.exists():
                with suppress(OSError):
                    self._path.with_suffix(".lock").unlink(missing_ok=True)
            self._lock.release()


def remove_old_sessions(now_s: float) -> None:
    """Remove the states of uploads that were interrupted long ago; registries have removed them as well."""
    with suppress(OSError):
        for path in (cache_dir() / "uploads").iterdir():
            if now_s - path.stat().st_mtime > SESSION_DAYS * 86400:
                path.unlink(missing_ok=True)
