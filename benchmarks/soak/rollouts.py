# SPDX-License-Identifier: Apache-2.0
"""Rollouts under load, each with a fault at a random time: no request may fail or mix two revisions.

Two artifacts with the same target and different drafts alternate. OpenAI clients send greedy requests continuously.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.soak.artifacts import RECIPES, SETTINGS, build, corrupted, lossy, of_two_models, other_than
from benchmarks.soak.asking import OpenaiEntry
from benchmarks.soak.asks import greedy
from benchmarks.soak.draft import chooser, rounded
from benchmarks.soak.faults import FAULTS, PHASES, STAGING, Fault, Scene, keep_of_disk, small_disk
from benchmarks.soak.load import Record, alone, by, load, summary
from benchmarks.soak.parts import Options, Report
from benchmarks.soak.progress import Progress, say
from benchmarks.soak.streams import NAME, trtspec
from trtspec.core.processes import wait_until
from trtspec.deployment.journal import DeploymentJournal
from trtspec.deployment.rollout.state import read_rollout

DISK = "full disk"  # requires permission to mount
KINDS = (
    "good",
    "server killed",
    "model killed",
    "model stopped",
    "slow",
    "dead draft",
    DISK,
    "command killed",
    "corrupt",
    "lossy",
)
REFUSED, ROLLED_BACK, MISMATCH = 1, 113, 102
EXITS = {"good": (0,), "command killed": (0,), "corrupt": (MISMATCH,)}  # all other kinds are rolled back
FULL = "no space left"  # the reason in every case
CLIENTS, WITHIN_S = 4, 120.0
PAUSES_S = (0.1, 0.4)  # pauses of a client between requests, which leave processor time for the rollout
LENGTHS = (8, 24, 48)  # tokens; longer texts take more processor time from the rollout
OVER_S = 300.0  # a longer rollout counts as stuck
OUTSIDE = 0.05  # allowed share of faults without an open request, because clients pause
BACK_S = 5.0  # maximum time from a fault to the end of its rollout
SHARES = "50%,100%"
COMMAND_S = 4.0  # maximum duration of the command
TIDY_S = 30.0  # until the previous revision has drained and is removed
ONE_THREAD = {"OMP_NUM_THREADS": "1"}  # per engine: on few cores, the threads of two engines would block each other
SKIP = ("min_speedup", "min_acceptance", "lossless")


@dataclass(frozen=True)
class Rolled:
    """One rollout: its fault and phase, the command's exit code, and the seconds of each, None without a fault.

    `at` is the time of the fault on the monotonic clock; `problem` is the unexpected state afterwards.
    """

    kind: str
    code: int | None
    seconds: float
    back_s: float | None
    reason: str
    phase: str = ""
    at: float | None = None
    problem: str = ""

    @property
    def as_expected(self) -> bool:
        return not self.problem and (
            self._of_full_disk if self.kind == DISK else self.code in EXITS.get(self.kind, (ROLLED_BACK,))
        )

    @property
    def _of_full_disk(self) -> bool:
        """Return whether the rollout succeeded, or was refused or rolled back because the disk was full."""
        return self.code == 0 or (self.code in (REFUSED, ROLLED_BACK) and FULL in self.reason.lower())


@dataclass(frozen=True)
class Stage:
    """The artifacts of the rollouts; `disk` is the file system of the state, None if it cannot be filled."""

    place: Path
    artifacts: Sequence[Path]
    lossy: Path
    of_two_models: Path
    disk: Path | None

    @property
    def kinds(self) -> list[str]:
        return [kind for kind in KINDS if kind != DISK or self.disk]

    def new(self, kind: str, serving: str, chance: random.Random) -> Path:
        """Return the artifact to roll out."""
        new = other_than(self.artifacts, serving)
        made = {"lossy": self.lossy, "dead draft": self.of_two_models}
        return corrupted(new, chance) if kind == "corrupt" else made.get(kind, new)


def run(options: Options, report: Report) -> None:
    """Run the part and fill the report."""
    rolled: list[Rolled] = []
    records: Sequence[Record] = ()
    with staged(options.place) as stage:
        document = trtspec("deploy", str(stage.artifacts[0]), "--detach", *skipped())
        entry = OpenaiEntry(document["endpoints"]["openai"].removesuffix("/v1"), NAME)
        try:
            known = alone([entry], greedy(4 if options.short else 24, options.seed, 0, LENGTHS), WITHIN_S)
            with load(CLIENTS, chooser(known), seed=options.seed, within_s=WITHIN_S, pauses_s=PAUSES_S) as records:
                roll_all(options, stage, rolled)
            report.checks["nothing_left"] = not left_over(DeploymentJournal(NAME))
        finally:
            tell(report, rolled, records)
            report.settings["kinds"] = stage.kinds
            trtspec("stop", NAME)
    report.complete = len(rolled) == options.count


@contextmanager
def staged(place: Path) -> Iterator[Stage]:
    """Build the artifacts; the state is on a small disk if mounting is allowed."""
    state = place / "state"
    os.environ |= {"TRTSPEC_STATE": str(state), "TRTSPEC_CACHE": str(place / "cache")}
    os.environ |= ONE_THREAD
    disk = state if small_disk(state) else None
    if disk is None:
        say("rollouts: mounting a tmpfs is not allowed, so full disks are skipped")
    try:
        good = [build(place, method) for method in RECIPES]
        yield Stage(place, good, lossy(good[0]), of_two_models(good[0]), disk)
    finally:
        if disk:
            keep_of_disk(disk, place / "kept")


def skipped() -> list[str]:
    return [word for name in SKIP for word in ("--skip-gate", name)]


def roll_all(options: Options, stage: Stage, rolled: list[Rolled]) -> None:
    """Run the rollouts with their faults in random order; stop at the first that is stuck."""
    chance, progress = random.Random(f"rollouts {options.seed}"), Progress("rollouts")
    kinds = [stage.kinds[number % len(stage.kinds)] for number in range(options.count)]
    chance.shuffle(kinds)
    for number, kind in enumerate(kinds):
        rolled.append(roll(kind, stage, chance))
        if not rolled[-1].as_expected:
            say(f"rollouts: {number + 1}, {kind}: {rolled[-1]}")
        if rolled[-1].code is None:
            return
        progress.tell((number + 1) / len(kinds), f"rollout {number + 1} of {len(kinds)}")


def roll(kind: str, stage: Stage, chance: random.Random) -> Rolled:
    """Roll out the artifact that is not live, with a fault."""
    journal = DeploymentJournal(NAME)
    serving = journal.read_existing()
    new, fault = stage.new(kind, serving.artifact, chance), Fault(chance.choice(phases_of(kind)))
    scene = Scene(journal, serving.revision, random.Random(chance.random()), stage.disk)
    begun, command = time.monotonic(), start(new)
    striking = threading.Thread(target=lambda: FAULTS[kind](scene, fault) if kind in FAULTS else None, daemon=True)
    striking.start()
    if kind == "command killed":
        time.sleep(chance.uniform(0.2, COMMAND_S))
        command.kill()
        command.communicate(timeout=30)
        wait_until(lambda: scene.phase() != STAGING, 1.0)
        command = start(new)
    try:
        _, said = command.communicate(timeout=OVER_S)
    except subprocess.TimeoutExpired:
        command.kill()
        command.communicate(timeout=30)
        return Rolled(kind, None, OVER_S, None, "stuck", fault.phase, fault.at)
    finally:
        over = time.monotonic()
        fault.over.set()
        striking.join(OVER_S)
    return ended(kind, scene, new, command.returncode, said, over - begun, fault, over)


def phases_of(kind: str) -> list[str]:
    """Return the phases in which a fault can occur; a revision has a process only after staging."""
    return [phase for phase in PHASES if phase != STAGING or kind == DISK]


def ended(
    kind: str, scene: Scene, new: Path, code: int, said: str, seconds: float, fault: Fault, over: float
) -> Rolled:
    """Return the outcome of a rollout after its command has ended."""
    rollout = read_rollout(scene.journal)
    is_back = code == ROLLED_BACK and rollout is not None and rollout.state == "rolled-back"
    reason = rollout.reason if is_back and rollout else said.rpartition("error: ")[2].strip() if code else ""
    back_s = round(over - fault.at, 2) if fault.at and code == ROLLED_BACK else None
    problem = untidy(scene, new, code) or (heard_of(scene) if kind == "lossy" else "")
    return Rolled(kind, code, round(seconds, 2), back_s, reason, fault.phase, fault.at, problem)


def untidy(scene: Scene, new: Path, code: int) -> str:
    """Return the unexpected state after the command has ended: the live revision, and leftovers on disk."""
    record = scene.journal.read_existing()
    if (str(new) == record.artifact and record.revision > scene.serving) != (code == 0):
        return f"{record.artifact} serves"
    if record.state_now != "live":
        return f"it is {record.state_now}"
    # a replaced revision is still draining
    return left_over(scene.journal) if code in (REFUSED, ROLLED_BACK) else ""


def left_over(journal: DeploymentJournal) -> str:
    """Return leftover revisions, except the live one and its predecessor."""
    live = [entry["revision"] for entry in journal.entries() if entry["state"] == "live"]
    kept = {*[*dict.fromkeys(live)][-2:]}

    def found() -> set[int]:
        return {int(path.name) for path in (journal.root / "revisions").iterdir()} - kept

    return "" if wait_until(lambda: not found(), TIDY_S) else f"revisions {sorted(found())} are left"


def heard_of(scene: Scene) -> str:
    """Return an error if clients reached a revision that should have failed on mirror traffic."""
    last = max(entry["revision"] for entry in scene.journal.entries())
    states = {entry["state"] for entry in scene.journal.entries() if entry["revision"] == last}
    return "clients were sent to it" if "canary" in states else ""


def start(artifact: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "trtspec", "deploy", str(artifact), "--canary", SHARES, *skipped()]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def tell(report: Report, rolled: Sequence[Rolled], records: Sequence[Record]) -> None:
    """Record the outcome of the requests and rollouts."""
    found = summary(records)
    struck = [each for each in rolled if each.at is not None]
    met = sum(meets(each, records) for each in struck)
    back = rounded(each.back_s for each in struck)
    report.settings |= {"clients": CLIENTS, "pauses_s": PAUSES_S, "shares": SHARES, "recipe": SETTINGS, **ONE_THREAD}
    report.found |= {
        "rollouts": len(rolled),
        "requests": found,
        "of_two_revisions": sum(record.heard.revisions > 1 for record in records),
        "kinds": {kind: told([each for each in rolled if each.kind == kind]) for kind in KINDS},
        "faults": len(struck),
        "faults_in_midst_of_requests": met,
        "seconds": round(sum(each.seconds for each in rolled), 1),
        "seconds_from_fault_to_rollback": back,
        "unexpected": [asdict(each) for each in rolled if not each.as_expected][:10],
    }
    report.checks |= {
        "no_request_failed": found["requests"] > 0 and found["failures"] == 0,
        "every_text_the_same": found["different_texts"] == 0,
        "no_answer_of_two_revisions": report.found["of_two_revisions"] == 0,
        "none_stuck": all(each.code is not None for each in rolled),
        "each_ends_as_it_should": all(each.as_expected for each in rolled),
        "each_fault_came": all(each.at is not None for each in rolled if each.kind in FAULTS),
        "in_midst_of_requests": not struck or (met > 0 and len(struck) - met <= max(1, OUTSIDE * len(struck))),
        "rolled_back_in_time": all(seconds < BACK_S for seconds in back),
    }


def meets(rolled: Rolled, records: Sequence[Record]) -> bool:
    """Return whether a request was open between a fault and the end of its rollout."""
    begun = rolled.at or 0.0
    until = begun + (rolled.back_s or BACK_S)
    return any(record.begun < until and record.ended > begun for record in records)


def told(rolled: Sequence[Rolled]) -> dict[str, Any]:
    back = [each for each in rolled if each.code not in (0, MISMATCH)]
    return {
        "rollouts": len(rolled),
        "as_expected": sum(each.as_expected for each in rolled),
        "seconds": rounded(each.seconds for each in rolled),
        "reasons": by(back, lambda each: each.reason),
        "phases": by([each for each in rolled if each.phase], lambda each: each.phase),
        "codes": by(rolled, lambda each: str(each.code)),
    }
