# SPDX-License-Identifier: Apache-2.0
"""Inject faults into rollouts: a fault of the new revision's processes or of the disk, in a random phase."""

from __future__ import annotations

import errno
import os
import random
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from trtspec.core.processes import session_processes
from trtspec.deployment.health import process_model
from trtspec.deployment.journal import DeploymentJournal
from trtspec.deployment.revision import revision_dir
from trtspec.deployment.rollout.state import read_rollout
from trtspec.serving.triton.names import DRAFT, TARGET

STAGING = "staging"  # before the revision is recorded: the command reads and copies
PHASES: Mapping[str, tuple[str, ...]] = {
    STAGING: (),
    "loading": ("starting", "loaded"),
    "shadow": ("smoke", "shadow"),
    "canary": ("canary",),
}
# Maximum delay of a fault after a phase began; each phase is longer, even on an idle machine.
DELAYS = {STAGING: 1.5, "loading": 2.0, "shadow": 0.5, "canary": 0.9}
LOOKS_S = 0.02
NEVER_S = 300.0  # time limit for a phase to begin
FULL_S = (0.5, 3.0)  # how long a disk is full; the rollout's outcome can be recorded only afterwards
DISK = "96m"
SERVER = ""  # instead of a model


@dataclass
class Fault:
    """One fault: the intended phase, the actual phase and the time; unset if it did not occur."""

    wanted: str
    phase: str = ""
    at: float | None = None
    over: threading.Event = field(default_factory=threading.Event)  # set when the rollout has ended

    def struck(self, phase: str) -> None:
        self.phase, self.at = phase, time.monotonic()


@dataclass(frozen=True)
class Scene:
    """The rollout that follows revision `serving`, and the disk of its state, None for an unlimited one."""

    journal: DeploymentJournal
    serving: int
    chance: random.Random
    disk: Path | None = None

    def phase(self) -> str:
        """Return the phase of the new revision, or "" if the rollout is over."""
        rollout = read_rollout(self.journal)
        if rollout is None or rollout.record.revision <= self.serving:
            return STAGING
        if rollout.is_over:
            return ""
        return next((phase for phase, states in PHASES.items() if rollout.state in states), STAGING)

    def await_moment(self, fault: Fault) -> bool:
        """Return whether the intended phase, or a later one, was reached and a random delay has passed."""
        order, deadline = [*PHASES], time.monotonic() + NEVER_S
        while not fault.over.is_set() and time.monotonic() < deadline:
            phase = self.phase()
            if phase and order.index(phase) >= order.index(fault.wanted):
                return not fault.over.wait(self.chance.uniform(0.0, DELAYS[fault.wanted]))
            time.sleep(LOOKS_S)
        return False

    def victim(self, fault: Fault, model: str) -> int:
        """Return the process of the new revision's server or model once it runs, or 0 if it never does."""
        while not fault.over.is_set():
            rollout, record = read_rollout(self.journal), self.journal.read_existing()
            assert rollout is not None
            place = f"{revision_dir(self.journal, rollout.record.revision)}/"
            for pid in session_processes(record.pid, record.started):
                with suppress(OSError):
                    if place in Path(f"/proc/{pid}/cmdline").read_text() and process_model(pid) == model:
                        return pid
            time.sleep(LOOKS_S)
        return 0


def strike(number: signal.Signals, model: str) -> Callable[[Scene, Fault], None]:
    """Return a function that sends a signal to the process of a model or the server at a random time of a phase."""

    def do(scene: Scene, fault: Fault) -> None:
        if not scene.await_moment(fault) or not (victim := scene.victim(fault, model)):
            return
        if phase := scene.phase():  # the live revision is not a target
            with suppress(ProcessLookupError):
                os.kill(victim, number)
                fault.struck(phase)

    return do


def end_draft(scene: Scene, fault: Fault) -> None:
    """Kill or stop the draft's process."""
    strike(scene.chance.choice([signal.SIGKILL, signal.SIGSTOP]), DRAFT)(scene, fault)


def slow(scene: Scene, fault: Fault) -> None:
    """Limit the new revision's engine to a twentieth of the time until it is gone."""
    if not scene.await_moment(fault) or not (victim := scene.victim(fault, TARGET)) or not (phase := scene.phase()):
        return
    fault.struck(phase)
    with suppress(ProcessLookupError):
        while True:
            os.kill(victim, signal.SIGSTOP)
            time.sleep(scene.chance.uniform(0.3, 0.6))
            os.kill(victim, signal.SIGCONT)
            time.sleep(0.02)


def fill(scene: Scene, fault: Fault) -> None:
    """Fill the disk for a while, or until the rollout ends."""
    assert scene.disk is not None
    if not scene.await_moment(fault) or not (phase := scene.phase()):
        return
    filler = scene.disk / "filler"
    try:
        fault.struck(phase)
        use_up(filler)
        fault.over.wait(scene.chance.uniform(*FULL_S))
    finally:
        filler.unlink(missing_ok=True)


def use_up(filler: Path) -> None:
    """Write until the disk is full."""
    with filler.open("wb", buffering=0) as file:
        for size in (1 << 20, 4096):
            try:
                while file.write(bytes(size)):
                    pass
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise


FAULTS: Mapping[str, Callable[[Scene, Fault], None]] = {
    "server killed": strike(signal.SIGKILL, SERVER),
    "model killed": strike(signal.SIGKILL, TARGET),
    "model stopped": strike(signal.SIGSTOP, TARGET),
    "slow": slow,
    "dead draft": end_draft,
    "full disk": fill,
}


def small_disk(place: Path) -> bool:
    """Mount a small file system at a directory; return whether that was allowed."""
    place.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(place)]
    try:
        return subprocess.run(mount, capture_output=True, check=False, timeout=60).returncode == 0
    except OSError:
        return False


def keep_of_disk(place: Path, kept: Path) -> None:
    """Unmount a disk after copying its logs and records."""
    for path in [*place.rglob("*.log"), *place.rglob("*.jsonl")]:
        target = kept / path.relative_to(place)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    subprocess.run(["umount", "-l", str(place)], check=True, timeout=60)
