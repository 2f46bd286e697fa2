# SPDX-License-Identifier: Apache-2.0
"""Claims of `trtspec profile`: the speed-up that it expects of a draft length is what the engine then has, within 15 %;
the length it chooses is as fast as the best, within 5 %; and its schedule is never slower than the better of the
target alone and a fixed draft length (at least 0.98 of it), however many requests run at once.

    python benchmarks/profile.py [--recipes quickstart quickstart-ngram quickstart-eagle3] [--out FILE.json]

What is expected and what is measured are of the same run: closed loops of so many requests, greedy, whole texts with
their prefill, while all of the places are taken. Each case runs next to the target alone, requests that ask the same
engine for no drafts (a second engine in the process takes up to 3 ms of each step of the first), and the median of
three such pairs counts. It takes half an hour of a quiet machine.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import cycle, islice
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.machine import environment
from trtspec.artifacts.manifest import load_manifest
from trtspec.measure.artifact import DRAFT, TARGET, engine_settings, open_artifact
from trtspec.measure.profile.candidate import Candidate, Measured, Texts, measure, say
from trtspec.measure.profile.recommend import recommend
from trtspec.paths import recipes_dir
from trtspec.prompts.load import load_prompts
from trtspec.torch_engine.engine import Engine

RECIPES = ("quickstart", "quickstart-ngram", "quickstart-eagle3")
MAX_DRAFT_LEN, MAX_BATCH = 10, 64
BATCHES, LENS = (1, 4, 16), (1, 2, 4, 6, 8, 10)
CONCURRENCIES = (1, 2, 4, 8, 16, 32, 64)
PROMPTS, TOKENS, ROUNDS = 32, 96, 3
LEAST, A_PLACE = 5, 3  # requests of a measurement, in all and for each that runs at once
WITHIN_S = 600.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipes", nargs="+", default=RECIPES)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--parts", nargs="+", choices=("lens", "schedule"), default=("lens", "schedule"))
    asked = parser.parse_args()
    document: dict[str, Any] = {"recipes": {}, "machine": environment()}
    with tempfile.TemporaryDirectory() as folder:
        for name in asked.recipes:
            document["recipes"][name] = examine(build(name, Path(folder)), asked.parts)
    text = json.dumps(document, indent=1)
    print(text)
    if asked.out:
        asked.out.write_text(text + "\n")


def build(name: str, folder: Path) -> Candidate:
    sets = {"speculation.draft_len": MAX_DRAFT_LEN, "engine.max_batch_size": MAX_BATCH}
    overrides = [part for key, value in sets.items() for part in ("--set", f"{key}={value}")]
    command = [
        sys.executable,
        "-m",
        "trtspec",
        "build",
        str(recipes_dir() / f"{name}.yaml"),
        "--out",
        str(folder / name),
    ]
    subprocess.run([*command, *overrides], check=True, timeout=WITHIN_S, capture_output=True)
    speculation = load_manifest(folder / name).recipe.speculation
    return Candidate(speculation.method, None, dict(speculation.options), True, folder / name)


def examine(candidate: Candidate, parts: Sequence[str]) -> dict[str, Any]:
    prompts = load_prompts(recipes_dir() / "prompts" / "quickstart.jsonl")[:PROMPTS]
    with open_artifact(candidate.root) as artifact:
        texts, _ = say(artifact, prompts, TOKENS, lambda what, done, total: None)
    measured = measure(candidate, texts, (*BATCHES, MAX_BATCH), lambda what, done, total: None)
    found: dict[str, Any] = {}
    if "lens" in parts:
        found["lens"] = compare_lens(measured, texts)
    if "schedule" in parts:
        found["schedule"] = compare_schedule(measured, texts)
    return found


def compare_lens(measured: Measured, texts: Texts) -> dict[str, Any]:
    """Hold what is expected of each draft length against what the engine does with it."""
    rows = []
    with loaded(measured.candidate) as engine:
        for batch in BATCHES:
            expected = {each.draft_len: each.expected.value for each in measured.speedups if each.batch == batch}
            chosen = measured.best(batch).draft_len
            lens = sorted({*LENS, chosen})
            arms = [(engine, length) for length in lens]
            seen = dict(zip(lens, map(ratio, pairs(engine, arms, texts, batch)), strict=True))
            rows.append(
                {
                    "batch": batch,
                    "expected": {str(length): round(expected[length], 3) for length in lens},
                    "measured": {str(length): round(ratio, 3) for length, ratio in seen.items()},
                    "largest_error": round(max(abs(expected[each] / seen[each] - 1) for each in lens), 3),
                    "chosen": chosen,
                    "chosen_of_best": round(seen[chosen] / max(seen.values()), 3),
                }
            )
            print(rows[-1], file=sys.stderr, flush=True)
    return {"batches": rows}


def compare_schedule(measured: Measured, texts: Texts) -> dict[str, Any]:
    """Hold the schedule against the target alone and the fixed length, at each number of requests at once."""
    chosen = recommend([measured], 1)
    schedule = chosen.schedule or ((MAX_BATCH, chosen.draft_len),)
    rows = []
    with (
        loaded(measured.candidate, schedule) as scheduled,
        loaded(measured.candidate) as fixed,
    ):
        for many in CONCURRENCIES:
            arms = [(fixed, chosen.draft_len), (scheduled, None)]
            of_fixed, of_scheduled = found = pairs(fixed, arms, texts, many)
            speed = {
                "alone": median(side for each in found for side, _ in each),
                "fixed": median(side for _, side in of_fixed),
                "scheduled": median(side for _, side in of_scheduled),
            }
            rows.append({"concurrency": many, **{arm: round(each, 1) for arm, each in speed.items()}})
            rows[-1]["scheduled_of_better"] = round(ratio(of_scheduled) / max(1.0, ratio(of_fixed)), 3)
    least = min(row["scheduled_of_better"] for row in rows)
    return {"schedule": schedule, "fixed": chosen.draft_len, "tokens_per_s": rows, "least": least}


@contextmanager
def loaded(candidate: Candidate, schedule: Sequence[tuple[int, int]] = ()) -> Iterator[Engine]:
    root = candidate.root
    settings = replace(engine_settings(root, load_manifest(root).recipe), schedule=tuple(schedule))
    engine = Engine.load(root / TARGET, root / DRAFT if (root / DRAFT).is_dir() else None, settings)
    try:
        yield engine
    finally:
        engine.close()


def pairs(
    engine: Engine, arms: Sequence[tuple[Engine, int | None]], texts: Texts, many: int
) -> list[list[tuple[float, float]]]:
    """Return for each arm its pairs of tokens a second, one a round: the target alone, and itself next to it."""
    found: list[list[tuple[float, float]]] = [[] for _ in arms]
    for number in range(ROUNDS):
        for place, arm in enumerate(arms):
            sides = {"alone": (engine, 0), "drafting": arm}
            order = sorted(sides, reverse=number % 2 == 1)
            speed = {name: throughput(*sides[name], texts, many) for name in order}
            found[place].append((speed["alone"], speed["drafting"]))
    print(f"{many} at once: {[round(ratio(each), 2) for each in found]}", file=sys.stderr, flush=True)
    return found


def ratio(found: Sequence[tuple[float, float]]) -> float:
    """Return how many times as fast an arm is: the median of its pairs."""
    return median(drafting / alone for alone, drafting in found)


def throughput(engine: Engine, length: int | None, texts: Texts, many: int) -> float:
    """Return tokens a second while `many` requests run: from the first until no more can begin."""
    from trtspec.generation.request import Request, Update

    prompts = list(islice(cycle(texts.prompts), max(LEAST, A_PLACE * many)))
    lock, left, done = threading.Lock(), iter(prompts), threading.Event()
    running = tokens = 0
    seconds, counted = 0.0, 0

    def begin() -> None:
        nonlocal running, seconds, counted
        with lock:
            prompt = next(left, None)
            if prompt is None:
                if not seconds:
                    seconds, counted = time.perf_counter() - started, tokens
                if running == 0:
                    done.set()
                return
            running += 1
        engine.submit(Request(prompt, TOKENS, draft_len=length), take)

    def take(update: Update) -> None:
        nonlocal running, tokens
        tokens += len(update.new_ids)
        if update.finish_reason:
            with lock:
                running -= 1
            begin()

    started = time.perf_counter()
    for _ in range(many):
        begin()
    if not done.wait(WITHIN_S):
        raise SystemExit("the engine did not end in time")
    return counted / seconds


if __name__ == "__main__":
    main()
