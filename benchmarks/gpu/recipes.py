# SPDX-License-Identifier: Apache-2.0
"""Build, verify, measure and train the quickstart recipes on a GPU, with the commands that a user runs.

    python -m benchmarks.gpu.recipes [--seconds 200] [--beside 8] [--out FILE.json]

`verify` compares every text with transformers. Several recipes are built and verified beside each other; then the
commands that measure speed run one by one. Each command's exit code, seconds and JSON document are recorded.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.gpu.parts import ROOT

RECIPES = ROOT / "recipes"
KINDS = RECIPES / "prompts" / "kinds.jsonl"
MAX_TOKENS = ("--max-tokens", "32")
PROMPTS = RECIPES / "prompts" / "quickstart.jsonl"
FEW = 8  # prompts for each verification and measurement
TRAINED = ("quickstart-eagle3", "quickstart-medusa")
TRAINING = ("--prompts", str(KINDS), "--steps", "20", "--max-minutes", "0.5")
BENCHED = ("quickstart", "quickstart-fp8", "quickstart-ngram")
SAID_CHARACTERS = 2000


class Commands:
    """Runs commands of trtspec in a directory until a time, and collects what they print."""

    def __init__(self, work: Path, deadline: float, out: Path | None) -> None:
        self._work, self._deadline, self._out = work, deadline, out
        self._few = ("--prompts", str(work / "few.jsonl"), *MAX_TOKENS)
        (work / "few.jsonl").write_text("".join(PROMPTS.read_text().splitlines(keepends=True)[:FEW]))
        self.results: list[dict[str, Any]] = []

    def run(self, *arguments: str) -> bool:
        """Run a command with --json; return whether it succeeded."""
        started = time.monotonic()
        result: dict[str, Any] = {"command": arguments, "exit_code": None, "seconds": 0.0}
        try:
            done = subprocess.run(
                [sys.executable, "-m", "trtspec", *arguments, "--json"],
                cwd=self._work,
                capture_output=True,
                text=True,
                timeout=max(0.1, self._deadline - started),
                check=False,
            )
        except subprocess.TimeoutExpired:
            result["said"] = "no time left"
        else:
            result |= {"exit_code": done.returncode, **_printed(done)}
        result["seconds"] = round(time.monotonic() - started, 1)
        print(line(result), flush=True)
        self.results.append(result)
        if self._out:
            document = {"table": [line(one) for one in self.results], "commands": self.results}
            self._out.write_text(json.dumps(document, indent=1) + "\n")
        return bool(result["exit_code"] == 0)

    def recipe(self, recipe: Path) -> None:
        """Build and verify a recipe, and train its draft if it is one of TRAINED."""
        if not self.run("build", str(recipe), "--out", recipe.stem):
            return
        self.run("verify", recipe.stem, "--undecided", "pass", "--skip-gate", "min_speedup", *self._few)
        if recipe.stem in TRAINED:
            self.run("train", str(recipe), *TRAINING, *MAX_TOKENS)

    def bench(self, artifact: str) -> None:
        """Measure the speed of a built recipe."""
        self.run("bench", artifact, "--runs", "2", *self._few)


def _printed(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    try:
        return {"document": json.loads(done.stdout)}
    except ValueError:
        return {"said": (done.stdout + done.stderr)[-SAID_CHARACTERS:]}


def line(result: dict[str, Any]) -> str:
    """Return one command's outcome."""
    command, target = result["command"][:2]
    said = result.get("said", "").strip().splitlines()
    code = "stopped" if result["exit_code"] is None else f"exit code {result['exit_code']}"
    return " ".join([f"{Path(target).stem:<22} {command:<7} {code} in {result['seconds']:.1f} s", *said[-1:]])


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=200, help="time limit of all commands")
    parser.add_argument("--beside", type=int, default=8, help="recipes at a time")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args(given)
    deadline = time.monotonic() + arguments.seconds
    recipes = sorted(RECIPES.glob("quickstart*.yaml"), key=lambda path: path.stem not in TRAINED)  # the longest first
    with TemporaryDirectory() as work:
        commands = Commands(Path(work), deadline, arguments.out)
        with ThreadPoolExecutor(arguments.beside) as pool:
            list(pool.map(commands.recipe, recipes))
        for name in BENCHED:
            commands.bench(name)
    sys.exit(any(result["exit_code"] != 0 for result in commands.results))


if __name__ == "__main__":
    main()
