# SPDX-License-Identifier: Apache-2.0
"""Running of a step on a worker, with the worker's own store; shared by all kinds of pool.

Sources are used at the path that the plan has. A file that is another copy than the planned one must have the planned
digest, and is hashed once per machine.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Mapping
from functools import cache
from hashlib import sha256
from pathlib import Path
from threading import Lock

from trtspec.core.errors import StepError, TrtspecError, describe_os_error_at, os_error_remedy
from trtspec.core.files import file_identity
from trtspec.core.paths import PACKAGE
from trtspec.fleet.hand_over import fetch_output, send_output
from trtspec.fleet.pool import Advanced, Event, Failure, Message, Outcome
from trtspec.store.entry import StoreEntry
from trtspec.store.files import FileReader, Files, replace_files
from trtspec.store.remote import Start
from trtspec.store.step import Inputs, Step, StepProgress
from trtspec.store.store import Obtained, Store

MOUNT_HINT = "put the model on a file system that all nodes mount at the same path, or copy it to that path on the node"


class SentProgress(StepProgress):
    """Sends a step's progress with `send`, at most every `period_s`; steps report from several threads."""

    def __init__(self, step: Step, send: Callable[[Event], object], period_s: float) -> None:
        self._key, self._send, self._period_s = step.key, send, period_s
        self._bytes, self._sent_at, self._lock = 0, time.monotonic(), Lock()

    def advance(self, n_bytes: int) -> None:
        with self._lock:
            self._bytes += n_bytes
            if self._bytes and time.monotonic() - self._sent_at >= self._period_s:
                self._send(Advanced(self._key, self._bytes))
                self._bytes, self._sent_at = 0, time.monotonic()

    def set_message(self, text: str) -> None:
        with self._lock:
            self._send(Message(self._key, text))


def run_step(
    step: Step,
    store: Store,
    node: str,
    start: Start,
    devices: tuple[str, ...] = (),
    *,
    hands_over: bool = False,
) -> Outcome:
    """Bring a step's output into `store` and return the outcome; errors become part of it, except interrupts.

    With `hands_over`, other machines get the output from the team store, and the step ends when it has the output.
    """
    started = time.perf_counter()
    try:
        with store.uses.holding([step.key, *(each.key for each in step.dependencies)]):
            outcome = _run(step, store, node, start, devices, started)
            if hands_over and outcome.status in ("built", "hit"):
                send_output(step, store, start(0).set_message)
            return outcome
    except TrtspecError as error:
        failure = Failure(error.message, error.where, error.hint or error.remedy, error.exit_code)
    except OSError as error:
        if described := describe_os_error_at(error, str(store.root)):
            failure = Failure(described, hint=os_error_remedy(error), exit_code=1)
        else:
            failure = Failure(traceback.format_exc(), exit_code=70)
    except Exception:  # a bug in a step must not end the worker: the driver reports it with its traceback
        failure = Failure(traceback.format_exc(), exit_code=70)
    return Outcome("failed", node, time.perf_counter() - started, failure)


def _run(
    step: Step,
    store: Store,
    node: str,
    start: Start,
    devices: tuple[str, ...],
    started: float,
) -> Outcome:
    if store.get(step.key).entry:
        store.obtain(step)  # the team store has it afterwards
        return Outcome("hit", node, time.perf_counter() - started)
    if store.fetch(step, start):
        return Outcome("fetched", node, time.perf_counter() - started)
    found = {each.key: _input(each, store, start) for each in step.dependencies}
    if missing := tuple(key for key, entry in found.items() if entry is None):
        return Outcome("missing", node, missing=missing)
    step.check_machine()
    directories: Mapping[str, Path] = {key: entry.files_dir for key, entry in found.items() if entry}
    obtained = store.obtain(localize(step, store), Inputs(directories, devices), start)
    return Outcome(obtained.status, node, time.perf_counter() - started)


def _input(step: Step, store: Store, start: Start) -> StoreEntry | None:
    """Return the output of a dependency, or None if no store has it; what no team store gets is made here."""
    found = fetch_output(step, store, start(0).set_message)
    return found or (None if step.is_shared else make_here(step, store).entry)


def make_here(step: Step, store: Store) -> Obtained:
    """Return the output of a step that no team store gets, such as a copy of weights, after making it if necessary."""
    made = {each.key: store.get(each.key).entry or make_here(each, store).entry for each in step.dependencies}
    return store.obtain(localize(step, store), Inputs({key: entry.files_dir for key, entry in made.items()}))


def localize(step: Step, store: Store) -> Step:
    """Return the step with this machine's times and identities of its source files, whose content is verified.

    Raise StepError for a source file that this machine lacks or that has other content. The key does not change.
    """
    return replace_files(step, lambda files: _local_files(files, store), in_inputs=False)


def _local_files(files: Files, store: Store) -> Files:
    for path in files.paths:
        if not path.is_file():
            raise StepError("this node does not have the file", where=str(path), hint=MOUNT_HINT)
    if not files.identities or tuple(map(file_identity, files.paths)) == files.identities:
        return files
    local = FileReader(store.digests).read(files.root, files.paths)
    for path, before, now in zip(files.paths, files.digests, local.digests, strict=True):
        if before != now:
            raise StepError("the file differs from the one that was planned", where=str(path), hint=MOUNT_HINT)
    return local


@cache
def code_digest() -> str:
    """Return a digest of trtspec's modules, which is equal on machines that build the same bytes for a key."""
    digest = sha256()
    for path in sorted(PACKAGE.rglob("*.py")):
        digest.update(f"{path.relative_to(PACKAGE)}\0".encode() + sha256(path.read_bytes()).digest())
    return digest.hexdigest()
