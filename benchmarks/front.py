# SPDX-License-Identifier: Apache-2.0
"""Measure the tokens per second of the front end, and the latency that it adds, with an engine that costs nothing.

    python benchmarks/front.py --streams 64 --tokens-per-step 4 --seconds 10 --json

The null engine takes the place of an artifact's engine. Each stage is measured alone, with all of its streams from the
same process: Triton over gRPC, Triton's `generate_stream` behind the ensemble, the OpenAI gateway, and beside them
uvicorn with ready events and vLLM's OpenAI server over the same engine, if $ENGINES/.venv-vllm has vLLM. The processor
time of each process is reported, because the clients share the machine. HTTP clients read every millisecond, and
latencies end with the kernel's times of arrival.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.front_stages.clients import Load
from benchmarks.front_stages.null_engine import MAX_STEPS, Steps
from benchmarks.front_stages.stages import STAGES, measure_stages
from benchmarks.machine import commit, environment
from trtspec.checkpoints.tokenizer import Tokenizer
from trtspec.core.errors import TrtspecError
from trtspec.serving.triton.server import find_server

ROOT = Path(__file__).parents[1]
RECIPE = ROOT / "recipes" / "quickstart.yaml"
BUILT = ROOT / "build" / "quickstart"
BUILD_S = 900.0
TEXT = (ROOT / "LICENSE").read_text(encoding="utf-8")[:4000]


def table(document: dict[str, Any]) -> str:
    """Return the results as text."""
    lines = ["stage                tokens/s   first ms p50/p99   other ms p50/p99   processor us/token"]
    for name, stage in document["stages"].items():
        first, other = (
            "-" if each is None else f"{each['p50']:.2f}/{each['p99']:.2f}"
            for each in (stage["first_ms"], stage["other_ms"])
        )
        spent = ", ".join(f"{who} {us}" for who, us in stage["cpu_us_per_token"].items())
        lines.append(f"{name:<20} {stage['tokens_per_s']:>8} {first:>18} {other:>18}   {spent}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python benchmarks/front.py", description=__doc__.splitlines()[0])
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens-per-step", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rate", type=float, default=0.0, help="tokens per second of all streams; 0: all that goes")
    parser.add_argument("--tokens", type=int, default=512, help="tokens of each text")
    parser.add_argument("--stages", default=",".join(STAGES), help="stages to measure, separated by commas")
    # Unlike a deployment, which has one by default: each writes half of a step's events, so the last one waits less.
    parser.add_argument("--gateway-processes", type=int, default=2, help="default: %(default)s")
    parser.add_argument("--artifact", type=Path, help="default: build/quickstart, or else a temporary build of it")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    if unknown := {*asked.stages.split(",")} - {*STAGES}:
        parser.error(f"unknown stages: {', '.join(sorted(unknown))}")
    if asked.artifact and not (asked.artifact / "manifest.json").exists():
        parser.error(f"{asked.artifact} is not an artifact; run: trtspec build recipes/quickstart.yaml")
    if asked.tokens > MAX_STEPS * asked.tokens_per_step:
        parser.error(f"--tokens: at most {MAX_STEPS} steps")
    try:
        find_server()
    except TrtspecError as error:
        raise SystemExit(str(error)) from None
    document = run(asked)
    print(json.dumps(document, indent=2) if asked.json else table(document))
    if asked.out:
        asked.out.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


def run(asked: argparse.Namespace) -> dict[str, Any]:
    """Measure the stages that were asked for and return the document."""
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        artifact = asked.artifact or find_artifact(root)
        steps, load = null_load(asked, artifact, root)
        found = measure_stages(asked.stages.split(","), artifact, steps, load, root, asked.gateway_processes)
    return {
        "streams": asked.streams,
        "tokens_per_step": asked.tokens_per_step,
        "rate": asked.rate,
        "gateway_processes": asked.gateway_processes,
        "tokens_per_s": {name: found[name]["tokens_per_s"] if name in found else None for name in STAGES},
        "stages": found,
        "commit": commit(),
        "machine": environment(),
    }


def find_artifact(root: Path) -> Path:
    """Return build/quickstart, or if it is missing, an artifact of the same recipe that is built below `root`."""
    if (BUILT / "manifest.json").exists():
        return BUILT
    print("building recipes/quickstart.yaml in a temporary place, because build/quickstart is missing", file=sys.stderr)
    command = [sys.executable, "-m", "trtspec", "build", str(RECIPE), "--out", str(root / "quickstart")]
    built = subprocess.run(command, cwd=ROOT, stdout=sys.stderr, timeout=BUILD_S, check=False)
    if built.returncode:
        raise SystemExit(built.returncode)
    return root / "quickstart"


def null_load(asked: argparse.Namespace, artifact: Path, root: Path) -> tuple[Steps, Load]:
    """Return what the null engine emits and what the clients request, with the times in a file of `root`."""
    clock = root / "clock"
    clock.write_bytes(bytes(8 * MAX_STEPS * asked.streams))
    step_s = asked.streams * asked.tokens_per_step / asked.rate if asked.rate else 0.0
    tokenizer = Tokenizer(artifact / "tokenizer")
    steps = Steps(asked.tokens_per_step, step_s, str(clock), tuple(tokenizer.encode(TEXT, False)))
    count = -(-asked.tokens // asked.tokens_per_step)
    characters = characters_by_step(steps, asked.tokens, tokenizer) if asked.rate else None
    return steps, Load(asked.streams, count, asked.tokens, 1.0, asked.seconds, steps.times(), characters)


def characters_by_step(steps: Steps, tokens: int, tokenizer: Tokenizer) -> npt.NDArray[np.float64]:
    """Return the length of a text after each of its steps."""
    parts = [*steps.parts(tokens)]
    ids = [token for part in parts for token in part]
    ends = np.cumsum([len(part) for part in parts])
    return np.array([len(tokenizer.decode(ids[:end])) for end in ends.tolist()], np.float64)


if __name__ == "__main__":
    main()
