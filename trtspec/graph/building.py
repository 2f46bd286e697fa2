# SPDX-License-Identifier: Apache-2.0
"""How a step's output becomes an entry: written beside the entries, sealed, and moved into place in one rename.

Whoever calls holds the lock of the key.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path

from trtspec.errors import StepError
from trtspec.failpoint import failpoint
from trtspec.file_records import FileRecord
from trtspec.files import sync
from trtspec.graph.entry import Entry, Stamp, UnsoundError, scan, seal_files, write_entry
from trtspec.graph.layout import Layout
from trtspec.graph.lookup import remember_stamps
from trtspec.graph.step import Inputs, Progress, Step, notes_of


def build_entry(layout: Layout, step: Step, inputs: Inputs, progress: Progress, clock: Callable[[], float]) -> Entry:
    """Run a step and publish what it wrote; what a resumable one wrote stays where it fails.

    `clock` says when the entry was made, in seconds of the epoch.
    """
    workspace = layout.partial(step.key) if step.RESUMABLE else layout.temporary(step.key)
    started = time.perf_counter()
    try:
        _make_workspace(workspace, step)
        step.run(workspace / "files", inputs, progress)
        records, stamps = _seal_output(step, workspace / "files")
        failpoint("store.before-entry")
        entry = Entry(
            directory=workspace,
            key=step.key,
            name=step.name,
            step_class=type(step).__qualname__,
            files=records,
            seconds=time.perf_counter() - started,
            created=datetime.fromtimestamp(clock(), timezone.utc).isoformat(timespec="seconds"),
        )
        write_entry(entry)
        shutil.rmtree(notes_of(workspace / "files"), ignore_errors=True)
        failpoint("store.before-rename")
        entry = _put_in_place(entry, layout.entry(step.key))
    except BaseException:  # an interrupt too leaves nothing behind but what can be resumed
        if not step.RESUMABLE:
            shutil.rmtree(workspace, ignore_errors=True)
        raise
    remember_stamps(layout, step.key, stamps)
    return entry


def _make_workspace(workspace: Path, step: Step) -> None:
    """Make the directories for a step's output and notes; files that an earlier run left become writable again."""
    files = workspace / "files"
    if step.RESUMABLE and files.is_dir():
        for path in scan(files):
            (files / path).chmod(0o644)
    files.mkdir(parents=True, exist_ok=step.RESUMABLE)
    if step.RESUMABLE:
        notes_of(files).mkdir(exist_ok=True)


def _seal_output(step: Step, files_dir: Path) -> tuple[tuple[FileRecord, ...], dict[str, Stamp]]:
    try:
        return seal_files(files_dir)
    except UnsoundError as problem:
        raise StepError(f"{step.name} wrote what cannot be kept: {problem}; nothing was published") from problem


def _put_in_place(entry: Entry, directory: Path) -> Entry:
    directory.parent.mkdir(parents=True, exist_ok=True)
    os.rename(entry.directory, directory)
    failpoint("store.after-rename")
    for parent in (directory.parent, directory.parent.parent):
        sync(parent)
    return entry.model_copy(update={"directory": directory})
