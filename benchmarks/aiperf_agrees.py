# SPDX-License-Identifier: Apache-2.0
"""The claim that `trtspec bench` and NVIDIA's AIPerf find the same: TTFT and TPOT of one server within 5 %.

    PATH=ENVIRONMENT/bin:$PATH python benchmarks/aiperf_agrees.py [--concurrency 1,4] [--rounds 3] [--out FILE.json]

The quickstart is deployed on a real tritonserver, and its OpenAI entry is asked for the same prompts by both, one after
the other in rounds that alternate, with speculation and without. A round of AIPerf starts a dozen processes four times:
two minutes, by estimate. `HF_HUB_OFFLINE` is not set for it, or it would take the tokenizer's directory for a name on
the hub.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.machine import environment

NAME, DRIVERS, FIGURES, ARMS = "agrees", ("trtspec", "aiperf"), ("ttft_ms", "tpot_ms"), ("served", "baseline")
TOKENS, WITHIN, WITHIN_S = 64, 0.05, 1200.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--concurrency", default="1,4")
    parser.add_argument("--requests", type=int, default=16, help="of each arm in a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    with TemporaryDirectory() as place, deployed(Path(place)) as variables:
        rounds = [one_round(number, asked, variables) for number in range(asked.rounds)]
    document = {"claim": f"TTFT and TPOT within {WITHIN:.0%}", **compared(rounds), "requests": asked.requests,
                "rounds": asked.rounds, "tokens": TOKENS, "machine": environment()}  # fmt: skip
    print(json.dumps(document, indent=1))
    if asked.out:
        asked.out.write_text(json.dumps(document, indent=1) + "\n")


@contextmanager
def deployed(root: Path) -> Iterator[dict[str, str]]:
    """Deploy the quickstart, and give the variables by which commands find it."""
    variables = {**os.environ, "TRTSPEC_STATE": str(root / "state")}
    trtspec(variables, "build", "quickstart", "--out", root / "artifact")
    trtspec(variables, "deploy", root / "artifact", "--detach", "--name", NAME)
    try:
        yield variables
    finally:
        trtspec(variables, "stop", NAME)


def trtspec(variables: Mapping[str, str], *arguments: object) -> dict[str, Any]:
    command = [sys.executable, "-m", "trtspec", *map(str, arguments), "--json"]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=WITHIN_S, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stderr}")
    return dict(json.loads(done.stdout))


def one_round(number: int, asked: argparse.Namespace, variables: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Ask with both; who is first changes."""
    found = {}
    for driver in DRIVERS if number % 2 else DRIVERS[::-1]:
        found[driver] = trtspec(
            variables, "bench", NAME, "--api", "completions", "--driver", driver, "--concurrency", asked.concurrency,
            "--requests", asked.requests, "--runs", 1, "--max-rounds", 1, "--output-tokens", TOKENS,
        )  # fmt: skip
        print(f"round {number + 1}: {driver}", file=sys.stderr, flush=True)
    return found


def compared(rounds: list[dict[str, dict[str, Any]]]) -> dict[str, Any]:
    """Return each figure's median over rounds of both, by load and arm, and how far they are apart at most."""
    rows = []
    for place, point in enumerate(rounds[0][DRIVERS[0]]["points"]):
        for arm in ARMS:
            for figure in FIGURES:
                row = {driver: medians(rounds, driver, place, arm, figure) for driver in DRIVERS}
                ours, theirs = (statistics.median(row[driver]) for driver in DRIVERS)
                rows.append({**point["load"], "arm": arm, "figure": figure, **row, "ratio": round(ours / theirs, 4)})
    apart = max(abs(row["ratio"] - 1) for row in rows)
    return {"figures": rows, "largest_difference": round(apart, 4), "holds": apart <= WITHIN}


def medians(rounds: list[dict[str, dict[str, Any]]], driver: str, place: int, arm: str, figure: str) -> list[float]:
    """Return the p50 of every round, in ms."""
    return [each[driver]["points"][place]["arms"][arm][figure]["p50"] for each in rounds]


if __name__ == "__main__":
    main()
