# SPDX-License-Identifier: Apache-2.0
"""Claims of `trtspec profile`: the speed-up that it expects of a draft length is what the engine then has, within 15 %;
the length it chooses is as fast as the best, within 5 %; and its schedule is never slower than the better of the
target alone and a fixed draft length (at least 0.98 of it), however many requests run at once.

    python benchmarks/profile.py [--recipes quickstart quickstart-ngram quickstart-eagle3] [--out FILE.json]

What is expected and what is measured are of the same run: closed loops of so many requests, greedy, whole texts with
their prefill. All cases alternate, and the better of two rounds counts. It takes half an hour of a quiet machine.
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
from pathlib import Path
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
BATCHES, LENS = (1, 4, 16), (0, 1, 2, 3, 4, 5, 6, 8, 10)
CONCURRENCIES = (1, 2, 4, 8, 16, 32, 64)
PROMPTS, TOKENS, ROUNDS = 32, 96, 2
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
    cases = [(batch, length) for batch in BATCHES for length in LENS]
    with loaded(measured.candidate) as engine:
        speeds = rounds([(engine, batch, length) for batch, length in cases], texts)
    speed = dict(zip(cases, speeds, strict=True))
    rows = []
    for batch in BATCHES:
        expected = {each.draft_len: each.expected.value for each in measured.speedups if each.batch == batch}
        seen = {length: speed[batch, length] / speed[batch, 0] for length in LENS if length}
        chosen = measured.best(batch).draft_len
        rows.append(
            {
                "batch": batch,
                "expected": {str(length): round(expected[length], 3) for length in seen},
                "measured": {str(length): round(ratio, 3) for length, ratio in seen.items()},
                "largest_error": round(max(abs(expected[length] / ratio - 1) for length, ratio in seen.items()), 3),
                "chosen": chosen,
                "chosen_of_best": round(seen.get(chosen, 0.0) / max(seen.values()), 3),
            }
        )
    return {"batches": rows}


def compare_schedule(measured: Measured, texts: Texts) -> dict[str, Any]:
    """Hold the schedule against the target alone and the fixed length, at each number of requests at once."""
    chosen = recommend([measured], 1)
    schedule = chosen.schedule or ((MAX_BATCH, chosen.draft_len),)
    with loaded(measured.candidate, schedule) as scheduled, loaded(measured.candidate) as fixed:
        arms = {"alone": (fixed, 0), "fixed": (fixed, chosen.draft_len), "scheduled": (scheduled, None)}
        cases = [(engine, many, length) for many in CONCURRENCIES for engine, length in arms.values()]
        speeds = iter(rounds(cases, texts))
    rows = []
    for many in CONCURRENCIES:
        speed = {arm: next(speeds) for arm in arms}
        better = max(speed["alone"], speed["fixed"])
        rows.append({"concurrency": many, **{arm: round(each, 1) for arm, each in speed.items()}})
        rows[-1]["scheduled_of_better"] = round(speed["scheduled"] / better, 3)
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


def rounds(cases: Sequence[tuple[Engine, int, int | None]], texts: Texts) -> list[float]:
    """Return the tokens a second of each case, the better of its rounds."""
    best = [0.0] * len(cases)
    for number in range(ROUNDS):
        for place, (engine, many, length) in enumerate(cases):
            best[place] = max(best[place], throughput(engine, texts, many, length))
        print(f"round {number + 1} of {ROUNDS}", file=sys.stderr, flush=True)
    return best


def throughput(engine: Engine, texts: Texts, many: int, length: int | None) -> float:
    """Return tokens a second of a closed loop of `many` requests, until each of them ended once or more."""
    from trtspec.generation.request import Request, Update

    prompts = [texts.prompts[number % len(texts.prompts)] for number in range(max(8, 2 * many))]
    lock, left, done = threading.Lock(), iter(prompts), threading.Event()
    running = tokens = 0

    def begin() -> None:
        nonlocal running
        with lock:
            prompt = next(left, None)
            if prompt is None:
                done.set() if running == 0 else None
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
    return tokens / (time.perf_counter() - started)


if __name__ == "__main__":
    main()
