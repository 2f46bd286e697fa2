# SPDX-License-Identifier: Apache-2.0
"""Store measurement records that only this user can write, with checksums.

Records are kept in the state directory with owner-only permissions; none comes with an artifact. A damaged record is
logged and treated as absent.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from trtspec.bench.machine import processor
from trtspec.core.files import describe_read_error, open_regular, private_directory, read_bounded, replace_file
from trtspec.core.paths import state_dir
from trtspec.store.checksummed_json import dump_checksummed_text, has_valid_checksum

log = logging.getLogger(__name__)

MAX_BYTES = 64 << 20


def records_dir(*names: str) -> Path:
    """Return the path of a record directory; it need not exist."""
    return state_dir().joinpath(*names)


def write_record(path: Path, values: Mapping[str, Any]) -> None:
    """Write a record with mode 0600; may raise OSError."""
    path.parent.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    private_directory(path.parent)
    replace_file(path, dump_checksummed_text(dict(values)), mode=0o600, follow=False)


def read_record(path: Path) -> bytes | None:
    """Return the text of a record, or None if it is absent, damaged or not written by this user."""
    try:
        if not (_is_closed(path.parent) and _is_owned(path)):
            raise OSError(None, "other users can write to it")
        data = read_bounded(path, MAX_BYTES, follow=False)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        log.warning("%s is ignored: %s", path, describe_read_error(error) if error.errno else error.strerror)
        return None
    if not has_valid_checksum(data):
        log.warning("%s is ignored: it is damaged or was written by an earlier trtspec", path)
        return None
    return data


def _is_owned(path: Path) -> bool:
    with open_regular(path, follow=False) as file:
        status = os.fstat(file.fileno())
    return status.st_uid == os.geteuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _is_closed(directory: Path) -> bool:
    status = directory.lstat()
    is_directory = stat.S_ISDIR(status.st_mode)
    return is_directory and status.st_uid == os.geteuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def this_machine() -> dict[str, Any]:
    """Return the hardware that speeds depend on, without starting a program: the processor and the GPU models."""
    gpus = []
    with suppress(OSError):
        for path in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
            lines = path.read_text(errors="replace").splitlines()
            gpus += [line.partition(":")[2].strip() for line in lines if line.startswith("Model:")]
    return {"cpu": processor(), "gpus": gpus}
