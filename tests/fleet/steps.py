# SPDX-License-Identifier: Apache-2.0
"""Steps and cells of fleet tests: small, importable by worker processes, with a record of each run."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path

from trtspec.core.errors import StepError
from trtspec.fleet.labels import Requirement
from trtspec.fleet.scheduler import Cell
from trtspec.store.step import Inputs, Step, StepProgress

NO_KEY = {"key": False}


@dataclass(frozen=True)
class Work(Step):
    """Writes its title and its inputs' texts; appends a line to `log` when it is done.

    `seconds` is how long it sleeps. `fault` is "" or one of: error, bug, kill-once (kills its process in the first
    run), kill.
    """

    VERSION = 1
    title: str
    needs: tuple[Work, ...] = ()
    seconds: float = field(default=0.0, metadata=NO_KEY)
    log: Path | None = field(default=None, metadata=NO_KEY)
    fault: str = field(default="", metadata=NO_KEY)
    gpus: int = 0

    @property
    def name(self) -> str:
        return self.title

    @property
    def num_devices(self) -> int:
        return self.gpus

    def run(self, out: Path, inputs: Inputs, progress: StepProgress) -> None:
        deadline = time.monotonic() + self.seconds
        while time.monotonic() < deadline:
            progress.advance(0)
            time.sleep(min(0.02, self.seconds))
        self._fail()
        (out / "text").write_text(content(self.title, [(inputs[need] / "text").read_text() for need in self.needs]))
        if self.log:
            with self.log.open("a") as file:
                file.write(f"{self.title} {os.getpid()}\n")

    def _fail(self) -> None:
        if self.fault == "error":
            raise StepError("the tool failed", where="tool.log", hint="read it")
        if self.fault == "bug":
            raise ZeroDivisionError("a bug of the step")
        first = self.log.with_suffix(f".{self.title}") if self.log else None
        if self.fault == "kill" or (self.fault == "kill-once" and first and not first.exists()):
            if first:
                first.touch()
            os.kill(os.getpid(), signal.SIGKILL)


def content(title: str, inputs: list[str]) -> str:
    return f"{title}({','.join(inputs)})"


def expected(step: Work) -> str:
    """Return the text that the step must have written."""
    return content(step.title, [expected(need) for need in step.needs])


def cell(name: str, *steps: Work, requirement: Requirement | None = None) -> Cell:
    """Return a cell of the steps and all their inputs."""
    found: dict[str, Work] = {}
    for step in steps:
        _visit(step, found)
    requirements = dict.fromkeys(found, requirement) if requirement else {}
    return Cell(name, tuple(found.values()), requirements, "recipe.yaml:2")


def _visit(step: Work, found: dict[str, Work]) -> None:
    for need in step.needs:
        _visit(need, found)
    found.setdefault(step.key, step)
