# SPDX-License-Identifier: Apache-2.0
"""trtspec commands as a step: they run on a node, and the JSON document of the last one is the output.

Measurements are not reusable, so each run has its own key. The recipe travels as text; files that it names must be at
the same path on the node, as for builds.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from trtspec.core.errors import StepError, StepTimeout
from trtspec.core.processes import die_with_parent, start_time, stop_session
from trtspec.store.step import Inputs, Step, StepProgress

DOCUMENT, EXIT_CODE = "document.json", "exit_code"
RECIPE = "recipe.yaml"
MAX_DOCUMENT_BYTES = 64 << 20
TIMEOUT_S = 12 * 3600.0
POLL_S = 0.5
STOP_S = 5.0
TAIL_BYTES = 4000


@dataclass(frozen=True)
class RunCommands(Step):
    """Runs trtspec `commands` one after another in an empty directory with the recipe's text in RECIPE.

    `run_id` distinguishes the runs of equal commands. A command that exits with an error ends the step, unless it is
    the last one and printed its results, as `bench --gates` does if a gate failed: then the code is in EXIT_CODE.
    """

    VERSION: ClassVar[int] = 1

    recipe: str
    commands: tuple[tuple[str, ...], ...]
    run_id: str

    @property
    def name(self) -> str:
        return self.commands[-1][0]

    def run(self, out: Path, inputs: Inputs, progress: StepProgress) -> None:
        """Run the commands; raise StepError with the error of one that fails, and StepTimeout after TIMEOUT_S."""
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, RECIPE).write_text(self.recipe, encoding="utf-8")
            for command in self.commands:
                with (out / DOCUMENT).open("wb") as document, Path(folder, "log").open("w+b") as log:
                    code = self._wait(command, folder, document, log, progress)
                    log.seek(max(0, log.tell() - TAIL_BYTES))
                    messages = log.read().decode(errors="replace")
                if code and (command != self.commands[-1] or not _has_results(out / DOCUMENT)):
                    message = _error(out / DOCUMENT) or _last_line(messages)
                    raise StepError(message, where=f"trtspec {command[0]}", hint=f"exit code {code}")
        (out / EXIT_CODE).write_text(f"{code}\n")

    def _wait(self, command: Sequence[str], folder: str, document: Any, log: Any, progress: StepProgress) -> int:
        variables = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        argv = (sys.executable, "-m", "trtspec", *command, "--json")
        process = subprocess.Popen(
            argv, cwd=folder, stdout=document, stderr=log, env=variables,
            start_new_session=True, preexec_fn=die_with_parent(),  # noqa: PLW1509  two system calls, no lock
        )  # fmt: skip
        started, deadline = start_time(process.pid), time.monotonic() + TIMEOUT_S
        try:
            while time.monotonic() < deadline:
                progress.advance(0)
                try:
                    return process.wait(POLL_S)
                except subprocess.TimeoutExpired:
                    continue
            raise StepTimeout(f"trtspec {command[0]} took longer than {TIMEOUT_S / 3600:.0f} h")
        finally:
            if process.poll() is None:
                stop_session(process.pid, started, STOP_S)
                process.wait(STOP_S)


def read_document(directory: Path) -> dict[str, Any]:
    """Return the JSON document of the last command; raise StepError for other output."""
    path = directory / DOCUMENT
    if (document := _parse(path)) is None:
        raise StepError("the command printed no JSON document", where=str(path))
    return document


def read_exit_code(directory: Path) -> int:
    """Return the exit code of the last command, whose document has results; raise StepError without one."""
    try:
        return int((directory / EXIT_CODE).read_text()[:8])
    except (OSError, ValueError):
        raise StepError("the exit code of the command is missing", where=str(directory)) from None


def _parse(path: Path) -> dict[str, Any] | None:
    if path.stat().st_size > MAX_DOCUMENT_BYTES:
        return None
    try:
        document = json.loads(path.read_bytes())
    except ValueError:
        return None
    return document if isinstance(document, dict) else None


def _has_results(path: Path) -> bool:
    """Return whether a command that failed printed a document of results, not one of its error."""
    document = _parse(path)
    return document is not None and not {"error", "problems"} & document.keys()


def _error(path: Path) -> str:
    """Return the message of the error document that a failed command printed, or ""."""
    document = _parse(path) or {}
    try:
        if "problems" in document:
            return "; ".join(str(each["message"]) for each in document["problems"])
        return str(document["error"]["message"])
    except (KeyError, TypeError):
        return ""


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "the command failed without a message"
