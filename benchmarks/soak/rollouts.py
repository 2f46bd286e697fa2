# SPDX-License-Identifier: Apache-2.0
"""Rollouts under load, each with a fault at a random moment: no request fails, no answer is of two revisions.

Two artifacts with the same target and other drafts take turns. OpenAI's clients ask for greedy texts all the time.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.soak.asking import OpenaiEntry
from benchmarks.soak.asks import greedy
from benchmarks.soak.draft import chooser, rounded
from benchmarks.soak.load import Record, alone, by, load, summary
from benchmarks.soak.parts import Options, Report
from benchmarks.soak.progress import Progress, say
from benchmarks.soak.streams import NAME, trtspec
from trtspec.deploy.journal import DeploymentJournal
from trtspec.deploy.look import model_of
from trtspec.deploy.revision import place_of
from trtspec.deploy.rollout import read_rollout
from trtspec.paths import recipes_dir
from trtspec.system import session_of, wait_until

KINDS = ("good", "server killed", "model killed", "model stopped", "slow", "command killed", "corrupt")
ROLLED_BACK, MISMATCH = 113, 102
EXITS = {"good": 0, "command killed": 0, "corrupt": MISMATCH}  # all others are rolled back
CLIENTS, WITHIN_S = 4, 120.0
LENGTHS = (8, 24, 48)  # tokens; the longer a text, the more of the machine it takes from what is rolled out
OVER_S = 300.0  # a rollout that takes longer is stuck
BACK_S = 5.0  # from a fault to the end of its rollout
RECIPES = {"draft_target": "quickstart.yaml", "eagle3": "quickstart-eagle3.yaml"}
SHARES = "50%,100%"
SETTINGS = (
    f"name={NAME}",
    "engine.max_batch_size=8",
    "serving.rollout.hold_s=0.5",
    "serving.rollout.min_requests=6",  # the fewest that latencies are compared of
    "serving.rollout.shadow=30",
)
STRIKES_S = 0.9  # from the first request of a client to a fault, at most; both shares together are held longer
COMMAND_S = 6.0  # from its start to its end, at most
LENIENT = "serving.rollout.max_latency_ratio=8"  # the two draft differently, and the machine has other work
SKIP = ("min_speedup", "min_acceptance", "lossless")


@dataclass(frozen=True)
class Rolled:
    """One rollout: its fault, how the command ended, and the seconds that both took, None where there was no fault."""

    kind: str
    code: int | None
    seconds: float
    back_s: float | None
    reason: str

    @property
    def as_expected(self) -> bool:
        return self.code == EXITS.get(self.kind, ROLLED_BACK)


def run(options: Options, report: Report) -> None:
    """Fill the report."""
    place = options.place
    os.environ |= {"TRTSPEC_STATE": str(place / "state"), "TRTSPEC_CACHE": str(place / "cache")}
    artifacts = [build(place, method) for method in RECIPES]
    document = trtspec("deploy", str(artifacts[0]), "--detach", *skipped())
    entry = OpenaiEntry(document["endpoints"]["openai"].removesuffix("/v1"), NAME)
    rolled: list[Rolled] = []
    records: Sequence[Record] = ()
    try:
        known = alone([entry], greedy(4 if options.short else 24, options.seed, 0, LENGTHS), WITHIN_S)
        with load(CLIENTS, chooser(known), seed=options.seed, within_s=WITHIN_S) as records:
            roll_all(options, artifacts, rolled)
    finally:
        tell(report, rolled, records)
        trtspec("stop", NAME)
    report.complete = len(rolled) == options.count


def build(place: Path, method: str) -> Path:
    sets = [word for setting in (*SETTINGS, LENIENT) for word in ("--set", setting)]
    trtspec("build", f"{recipes_dir()}/{RECIPES[method]}", *sets, "--out", f"{place}/{method}")
    return place / method


def skipped() -> list[str]:
    return [word for name in SKIP for word in ("--skip-gate", name)]


def roll_all(options: Options, artifacts: Sequence[Path], rolled: list[Rolled]) -> None:
    """Do the rollouts with their faults in random order; ends with the first that is stuck."""
    chance, progress = random.Random(f"rollouts {options.seed}"), Progress("rollouts")
    kinds = [KINDS[number % len(KINDS)] for number in range(options.count)]
    chance.shuffle(kinds)
    for number, kind in enumerate(kinds):
        rolled.append(roll(kind, artifacts, chance))
        if not rolled[-1].as_expected:
            say(f"rollouts: {number + 1}, {kind}: {rolled[-1]}")
        if rolled[-1].code is None:
            return
        progress.tell((number + 1) / len(kinds), f"rollout {number + 1} of {len(kinds)}")


def roll(kind: str, artifacts: Sequence[Path], chance: random.Random) -> Rolled:
    """Bring in the artifact that does not serve, with a fault on the way."""
    journal, begun = DeploymentJournal(NAME), time.monotonic()
    serving = journal.known()
    new = next(path for path in artifacts if str(path) != serving.artifact)
    if kind == "corrupt":
        new = corrupted(new, chance)
    hurt: list[float] = []
    command = start(new)
    faults: dict[str, Callable[[], None]] = {
        "server killed": lambda: strike(journal, chance, hurt, signal.SIGKILL, of_server=True),
        "model killed": lambda: strike(journal, chance, hurt, signal.SIGKILL),
        "model stopped": lambda: strike(journal, chance, hurt, signal.SIGSTOP),
        "slow": lambda: slow(journal, chance, hurt),
    }
    if kind in faults:
        threading.Thread(target=faults[kind], daemon=True).start()
    if kind == "command killed":
        time.sleep(chance.uniform(0.2, COMMAND_S))
        command.kill()
        command.communicate(timeout=30)
        wait_until(lambda: staged(journal, serving.revision), 1.0)
        command = start(new)
    return ended(kind, journal, command, begun, hurt)


def ended(
    kind: str, journal: DeploymentJournal, command: subprocess.Popen[str], begun: float, hurt: Sequence[float]
) -> Rolled:
    try:
        _, said = command.communicate(timeout=OVER_S)
    except subprocess.TimeoutExpired:
        command.kill()
        command.communicate(timeout=30)
        return Rolled(kind, None, OVER_S, None, "stuck")
    over, rollout = time.monotonic(), read_rollout(journal)
    reason = rollout.reason if rollout and rollout.state == "rolled-back" else ""
    back_s = round(over - hurt[0], 2) if hurt and command.returncode == ROLLED_BACK else None
    return Rolled(kind, command.returncode, round(over - begun, 2), back_s, reason or said[-200:])


def start(artifact: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "trtspec", "deploy", str(artifact), "--canary", SHARES, *skipped()]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def staged(journal: DeploymentJournal, serving: int) -> bool:
    rollout = read_rollout(journal)
    return rollout is not None and rollout.record.revision > serving


def corrupted(artifact: Path, chance: random.Random) -> Path:
    """Return a copy of which one byte of what runs is another."""
    copy = artifact.with_name(f"{artifact.name}-corrupt")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(artifact, copy)
    manifest = json.loads((copy / "manifest.json").read_text())
    runs = [file["path"] for file in manifest["files"] if file["path"].startswith("model_repository/")]
    path = copy / chance.choice([each for each in runs if (copy / each).stat().st_size])
    content = bytearray(path.read_bytes())
    content[chance.randrange(len(content))] ^= 1
    path.write_bytes(content)
    return copy


def strike(
    journal: DeploymentJournal,
    chance: random.Random,
    hurt: list[float],
    number: signal.Signals,
    *,
    of_server: bool = False,
) -> None:
    """Send a signal to a process of the new revision once it gets requests, at a random moment."""
    if victim := victim_of(journal, of_server=of_server):
        time.sleep(chance.uniform(0.0, STRIKES_S))
        with suppress(ProcessLookupError):
            os.kill(victim, number)
            hurt.append(time.monotonic())


def slow(journal: DeploymentJournal, chance: random.Random, hurt: list[float]) -> None:
    """Let the new revision's engine run for a twentieth of the time, until it is gone."""
    victim = victim_of(journal, of_server=False)
    hurt.append(time.monotonic())
    with suppress(ProcessLookupError):
        while victim:
            os.kill(victim, signal.SIGSTOP)
            time.sleep(chance.uniform(0.3, 0.6))
            os.kill(victim, signal.SIGCONT)
            time.sleep(0.02)


def victim_of(journal: DeploymentJournal, *, of_server: bool) -> int:
    """Return the process of the new revision's server or engine when it gets requests; 0 where it never does."""

    def gets() -> bool:
        rollout = read_rollout(journal)
        return rollout is not None and rollout.state == "canary"

    if not wait_until(gets, OVER_S):
        return 0
    rollout, record = read_rollout(journal), journal.known()
    assert rollout is not None
    place = f"{place_of(journal, rollout.record.revision)}/"
    wanted = "" if of_server else "tensorrt_llm"
    for pid in session_of(record.pid, record.started):
        with suppress(OSError):
            if place in Path(f"/proc/{pid}/cmdline").read_text() and model_of(pid) == wanted:
                return pid
    return 0


def tell(report: Report, rolled: Sequence[Rolled], records: Sequence[Record]) -> None:
    """Note what the requests and the rollouts came to."""
    found, back = summary(records), rounded(each.back_s for each in rolled if each.kind != "slow")
    report.settings |= {"clients": CLIENTS, "shares": SHARES, "recipe": SETTINGS}
    report.found |= {
        "rollouts": len(rolled),
        "requests": found,
        "of_two_revisions": sum(record.heard.revisions > 1 for record in records),
        "kinds": {kind: told([each for each in rolled if each.kind == kind]) for kind in KINDS},
        "seconds_from_fault_to_rollback": back,
        "unexpected": [asdict(each) for each in rolled if not each.as_expected][:10],
    }
    report.checks |= {
        "no_request_failed": found["requests"] > 0 and found["failures"] == 0,
        "every_text_the_same": found["different_texts"] == 0,
        "no_answer_of_two_revisions": report.found["of_two_revisions"] == 0,
        "none_stuck": all(each.code is not None for each in rolled),
        "each_ends_as_it_should": all(each.as_expected for each in rolled),
        "rolled_back_in_time": all(seconds < BACK_S for seconds in back),
    }


def told(rolled: Sequence[Rolled]) -> dict[str, Any]:
    return {
        "rollouts": len(rolled),
        "as_expected": sum(each.as_expected for each in rolled),
        "seconds": rounded(each.seconds for each in rolled),
        "reasons": by([each for each in rolled if each.code == ROLLED_BACK], lambda each: each.reason),
    }
