# SPDX-License-Identifier: Apache-2.0
"""Turn a step's output into an entry: write it to a workspace, seal it and move it into place with one rename.

The caller must hold the lock of the key.
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
from trtspec.core.files import fsync_path
from trtspec.store.entry import Stamp, StoreEntry, UnsoundError, scan, seal_files, write_entry
from trtspec.store.layout import Layout
from trtspec.store.lookup import remember_stamps
from trtspec.store.step import Inputs, Step, StepProgress, notes_dir


@dataclass(frozen=True)
class StepOutput:
    """A step's sealed output in its workspace, not yet in the store, and the seconds it took."""

    workspace: Path
    records: tuple[FileRecord, ...]
    stamps: dict[str, Stamp]
    seconds: float


@contextmanager
def step_workspace(layout: Layout, step: Step) -> Iterator[Path]:
    """Provide the directory for a step's files and notes; after a failure a resumable step's workspace is kept.

    After SourceChanged the notes are deleted, because the files may come from a different source.
    """
    workspace = layout.partial(step.key) if step.RESUMABLE else layout.temporary(step.key)
    try:
        _make_workspace(workspace, step)
        yield workspace
    except BaseException as error:  # after an interrupt, too, only resumable output may remain
        if not step.RESUMABLE:
            shutil.rmtree(workspace, ignore_errors=True)
        elif isinstance(error, SourceChanged):
            shutil.rmtree(notes_dir(workspace / "files"))
        raise


def write_output(workspace: Path, step: Step, inputs: Inputs, progress: StepProgress) -> StepOutput:
    """Run a step and seal its output."""
    started, files = time.perf_counter(), workspace / "files"
    known = step.run(files, inputs, progress) or {}
    records, stamps = _seal_output(step, files, known)
    return StepOutput(workspace, records, stamps, time.perf_counter() - started)


def publish_output(layout: Layout, step: Step, output: StepOutput, clock: Callable[[], float]) -> StoreEntry:
    """Make an output the entry of a step's key; `clock` returns the time in seconds since the epoch."""
    failpoint("store.before-entry")
    entry = StoreEntry(
        directory=output.workspace,
        key=step.key,
        name=step.name,
        step_class=type(step).__qualname__,
        files=output.records,
        seconds=output.seconds,
        created=datetime.fromtimestamp(clock(), timezone.utc).isoformat(timespec="seconds"),
    )
    write_entry(entry)
    shutil.rmtree(notes_dir(output.workspace / "files"), ignore_errors=True)
    failpoint("store.before-rename")
    entry = _install(entry, layout.entry(step.key))
    remember_stamps(layout, step.key, output.stamps)
    return entry


def _make_workspace(workspace: Path, step: Step) -> None:
    """Create the directories for a step's output and notes; make files of an earlier run writable again."""
    files = workspace / "files"
    if step.RESUMABLE and files.is_dir():
        for path in scan(files):
            (files / path).chmod(0o644)
    files.mkdir(parents=True, exist_ok=step.RESUMABLE)
    if step.RESUMABLE:
        notes_dir(files).mkdir(exist_ok=True)


def _seal_output(
    step: Step, files_dir: Path, known: Mapping[str, str]
) -> tuple[tuple[FileRecord, ...], dict[str, Stamp]]:
    try:
        return seal_files(files_dir, known)
    except UnsoundError as problem:
        raise StepError(f"invalid output of {step.name}: {problem}; nothing was published") from problem


def _install(entry: StoreEntry, directory: Path) -> StoreEntry:
    directory.parent.mkdir(parents=True, exist_ok=True)
    os.rename(entry.directory, directory)
    failpoint("store.after-rename")
    for parent in (directory.parent, directory.parent.parent):
        fsync_path(parent)
    return entry.model_copy(update={"directory": directory})
