# SPDX-License-Identifier: Apache-2.0
"""How a step's output becomes an entry: written beside the entries, sealed, and moved into place in one rename.

Whoever calls holds the lock of the key.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from trtspec.core.errors import SourceChanged, StepError
from trtspec.core.failpoint import failpoint
from trtspec.core.file_records import FileRecord
from trtspec.core.files import sync
from trtspec.store.entry import Entry, Stamp, UnsoundError, scan, seal_files, write_entry
from trtspec.store.layout import Layout
from trtspec.store.lookup import remember_stamps
from trtspec.store.step import Inputs, Progress, Step, notes_of


@dataclass(frozen=True)
class Output:
    """What a step wrote into its workspace, sealed, and how long that took; it has no place in the store yet."""

    workspace: Path
    records: tuple[FileRecord, ...]
    stamps: dict[str, Stamp]
    seconds: float


@contextmanager
def workspace_of(layout: Layout, step: Step) -> Iterator[Path]:
    """Lend a step the directory for its files and notes; what a resumable one wrote stays where it fails.

    It does not go on with what it made of a source that is another one: that may be of other bytes.
    """
    workspace = layout.partial(step.key) if step.RESUMABLE else layout.temporary(step.key)
    try:
        _make_workspace(workspace, step)
        yield workspace
    except BaseException as error:  # an interrupt too leaves nothing behind but what can be resumed
        if not step.RESUMABLE:
            shutil.rmtree(workspace, ignore_errors=True)
        elif isinstance(error, SourceChanged):
            shutil.rmtree(notes_of(workspace / "files"))
        raise


def write_output(workspace: Path, step: Step, inputs: Inputs, progress: Progress) -> Output:
    """Run a step and seal what it wrote."""
    started, files = time.perf_counter(), workspace / "files"
    known = step.run(files, inputs, progress) or {}
    records, stamps = _seal_output(step, files, known)
    return Output(workspace, records, stamps, time.perf_counter() - started)


def publish_output(layout: Layout, step: Step, output: Output, clock: Callable[[], float]) -> Entry:
    """Make an output the entry of a step's key; `clock` says when that was, in seconds of the epoch."""
    failpoint("store.before-entry")
    entry = Entry(
        directory=output.workspace,
        key=step.key,
        name=step.name,
        step_class=type(step).__qualname__,
        files=output.records,
        seconds=output.seconds,
        created=datetime.fromtimestamp(clock(), timezone.utc).isoformat(timespec="seconds"),
    )
    write_entry(entry)
    shutil.rmtree(notes_of(output.workspace / "files"), ignore_errors=True)
    failpoint("store.before-rename")
    entry = _put_in_place(entry, layout.entry(step.key))
    remember_stamps(layout, step.key, output.stamps)
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


def _seal_output(
    step: Step, files_dir: Path, known: Mapping[str, str]
) -> tuple[tuple[FileRecord, ...], dict[str, Stamp]]:
    try:
        return seal_files(files_dir, known)
    except UnsoundError as problem:
        raise StepError(f"{step.name} wrote what cannot be kept: {problem}; nothing was published") from problem


def _put_in_place(entry: Entry, directory: Path) -> Entry:
    directory.parent.mkdir(parents=True, exist_ok=True)
    os.rename(entry.directory, directory)
    failpoint("store.after-rename")
    for parent in (directory.parent, directory.parent.parent):
        sync(parent)
    return entry.model_copy(update={"directory": directory})
