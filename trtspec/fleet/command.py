# SPDX-License-Identifier: Apache-2.0
"""A trtspec command as a step: it runs on a node and its JSON document is the output.

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
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from trtspec.core.errors import StepError, StepTimeout
from trtspec.core.processes import start_time, stop_session
from trtspec.store.step import Inputs, Step, StepProgress

DOCUMENT = "document.json"
MAX_DOCUMENT_BYTES = 64 << 20
TIMEOUT_S = 12 * 3600.0
POLL_S = 0.5
STOP_S = 5.0
TAIL_BYTES = 4000


@dataclass(frozen=True)
class RunCommand(Step):
    """Runs `trtspec COMMAND RECIPE ARGUMENTS --json`; `run_id` distinguishes the runs of equal commands."""

    VERSION: ClassVar[int] = 1

    verb: str
    recipe: str
    arguments: tuple[str, ...]
    run_id: str

    @property
    def name(self) -> str:
        return self.verb

    @property
    def command(self) -> tuple[str, ...]:
        return (sys.executable, "-m", "trtspec", self.verb, "recipe.yaml", *self.arguments, "--json")

    def run(self, out: Path, inputs: Inputs, progress: StepProgress) -> None:
        """Run the command; raise StepError with its own error if it fails, and StepTimeout after TIMEOUT_S."""
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "recipe.yaml").write_text(self.recipe, encoding="utf-8")
            with (out / DOCUMENT).open("wb") as document, Path(folder, "log").open("w+b") as log:
                code = self._wait(folder, document, log, progress)
                log.seek(max(0, log.tell() - TAIL_BYTES))
                messages = log.read().decode(errors="replace")
        if code:
            raise StepError(_error(out / DOCUMENT) or _last_line(messages), hint=f"exit code {code}")

    def _wait(self, folder: str, document: Any, log: Any, progress: StepProgress) -> int:
        variables = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        process = subprocess.Popen(
            self.command, cwd=folder, stdout=document, stderr=log, env=variables, start_new_session=True
        )
        started, deadline = start_time(process.pid), time.monotonic() + TIMEOUT_S
        try:
            while time.monotonic() < deadline:
                progress.advance(0)
                try:
                    return process.wait(POLL_S)
                except subprocess.TimeoutExpired:
                    continue
            raise StepTimeout(f"{self.verb} took longer than {TIMEOUT_S / 3600:.0f} h")
        finally:
            if process.poll() is None:
                stop_session(process.pid, started, STOP_S)
                process.wait(STOP_S)


def read_document(directory: Path) -> dict[str, Any]:
    """Return the JSON document of a finished command; raise StepError if it is none."""
    path = directory / DOCUMENT
    if path.stat().st_size <= MAX_DOCUMENT_BYTES:
        try:
            document = json.loads(path.read_bytes())
        except ValueError:
            document = None
        if isinstance(document, dict):
            return document
    raise StepError("the command printed no JSON document", where=str(path))


def _error(path: Path) -> str:
    """Return the message of the error document that a failed command printed, or ""."""
    try:
        document = json.loads(path.read_bytes()[:MAX_DOCUMENT_BYTES])
        if "problems" in document:
            return "; ".join(str(each["message"]) for each in document["problems"])
        return str(document["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return ""


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "the command failed without a message"
