# SPDX-License-Identifier: Apache-2.0
"""Claims of `trtspec profile`: the speed-up that it expects of a draft length is what the engine then has, within 15 %;
the length it chooses is as fast as the best, within 5 %; and its schedule is never slower than the better of the
target alone and a fixed draft length (at least 0.98 of it), however many requests run at once.

    python benchmarks/profiles.py [--recipes quickstart quickstart-ngram quickstart-eagle3] [--out FILE.json]

What is expected and what is measured are of the same run: closed loops of so many requests, greedy, whole texts with
their prefill, while all of the places are taken. For how many run at once, each draft length is expected by steps
timed before and behind the closed loops, the faster counting. Each arm has a process of its own (a second engine in one
would take up to 3 ms of each step of the first), the target alone an engine that has nothing to draft with. They run by
turns of half a second (turns.py), and change processes from round to round. No engine keeps texts that ended: the
prompts come again and again. All runs of an arm do the same in the same order, so each stretch of some steps counts by
the run in which it was fastest: what else a machine does only adds to one. Each run asks all prompts that the
acceptance is counted on. `noise` says how far apart two equal arms are. It takes half an hour a recipe.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cache
from itertools import count, cycle, pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.machine import environment
from benchmarks.turns import Ring, Turn, join
from trtspec.bench.artifact import DRAFT, TARGET, engine_settings, open_artifact
from trtspec.bench.profile.candidate import Candidate, Texts
from trtspec.bench.profile.engine_profiler import measure, say
from trtspec.bench.profile.measured import Measured
from trtspec.bench.profile.recommend import recommend
from trtspec.core.paths import recipes_dir
from trtspec.engine.engine import Engine
from trtspec.engine.prompts.load import load_prompts
from trtspec.store.manifest import load_manifest

RECIPES = ("quickstart", "quickstart-ngram", "quickstart-eagle3")
MAX_DRAFT_LEN, MAX_BATCH = 10, 64
BATCHES, LENS = (1, 4, 16), (1, 2, 4, 6, 8, 10)
CONCURRENCIES = (1, 2, 4, 8, 16, 32, 64)
PROMPTS, TOKENS, ROUNDS = 24, 96, 4
STRETCH = 8  # steps
A_PLACE = 2  # requests of a measurement for each that runs at once, rounded up to all prompts once or several times
WITHIN_S = 600.0

Schedule = tuple[tuple[int, int], ...]
Stretches = list[tuple[int, float]]  # tokens and seconds
Asked = Callable[[Sequence[Schedule], int, int], list[Stretches]]  # arms, requests at once, number of the round

ALONE: Schedule = ()  # an engine without what drafts


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
            if asked.out:
                asked.out.write_text(json.dumps(document, indent=1) + "\n")
    print(json.dumps(document, indent=1))


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
    compared = {"lens": compare_lens, "schedule": compare_schedule}
    with loaded(candidate, texts) as engine:
        return {part: compared[part](candidate, texts, engine) for part in parts}


def compare_lens(candidate: Candidate, texts: Texts, engine: Asked) -> dict[str, Any]:
    """Hold what is expected of each draft length against what the engine does with it."""
    rows = []
    for batch in BATCHES:
        before = measured_at(candidate, texts, batch)
        alone, *found = rounds(engine, [ALONE, *(((MAX_BATCH, length),) for length in before.acceptance)], batch)
        measured = faster(before, measured_at(candidate, texts, batch))
        expected = {each.draft_len: each.expected.value for each in measured.speedups}
        chosen = measured.best(batch).draft_len
        seen = {length: each / alone for length, each in zip(before.acceptance, found, strict=True)}
        lens = sorted({*LENS, chosen})
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


def measured_at(candidate: Candidate, texts: Texts, *batches: int) -> Measured:
    return measure(candidate, texts, batches, lambda what, done, total: None)


def faster(one: Measured, other: Measured) -> Measured:
    """Return what was measured twice, by the faster steps and prefills."""
    seconds = {case: min(taken, other.seconds[case]) for case, taken in one.seconds.items()}
    prefills = {
        batch: (min(alone, other.prefills[batch][0]), min(whole, other.prefills[batch][1]))
        for batch, (alone, whole) in one.prefills.items()
    }
    return replace(one, seconds=seconds, prefills=prefills)


def compare_schedule(candidate: Candidate, texts: Texts, engine: Asked) -> dict[str, Any]:
    """Hold the schedule against the target alone and the fixed length, at each number of requests at once.

    `noise` is how far two equal arms are apart: the fixed length was asked twice.
    """
    chosen = recommend([measured_at(candidate, texts, *CONCURRENCIES)], 1)
    schedule, fixed = chosen.schedule or ((MAX_BATCH, chosen.draft_len),), ((MAX_BATCH, chosen.draft_len),)
    rows = []
    for many in CONCURRENCIES:
        arms = {"alone": ALONE, "fixed": fixed, "scheduled": schedule, "again": fixed}
        found = dict(zip(arms, rounds(engine, [*arms.values()], many), strict=True))
        better, noise = max(found["alone"], found["fixed"]), abs(found["again"] / found["fixed"] - 1)
        row = {"concurrency": many, **{arm: round(each, 1) for arm, each in found.items()}}
        rows.append(row | {"scheduled_of_better": round(found["scheduled"] / better, 3), "noise": round(noise, 3)})
        print(rows[-1], file=sys.stderr, flush=True)
    least = min(row["scheduled_of_better"] for row in rows)
    return {"schedule": schedule, "fixed": chosen.draft_len, "tokens_per_s": rows, "least": least}


@contextmanager
def loaded(candidate: Candidate, texts: Texts) -> Iterator[Asked]:
    """Give engines, each in a process of its own: as many that draft as arms need, and as many of the target alone.

    Equal ones differ by some percent from process to process, so rounds go through them.
    """
    context, places = get_context("spawn"), MAX_DRAFT_LEN + 1
    ring = Ring.make(context, places)
    with ExitStack() as stack:

        @cache
        def process(number: int, *, drafts: bool) -> ProcessPoolExecutor:
            pool = stack.enter_context(ProcessPoolExecutor(1, context, join, (ring,)))
            pool.submit(load, candidate.root, drafts=drafts).result(WITHIN_S)  # nobody runs meanwhile
            return pool

        def asked(arms: Sequence[Schedule], many: int, number: int) -> list[Stretches]:
            of_each = sum(map(bool, arms))
            numbers = (each % of_each for each in count(number))
            pools = [process(next(numbers) if arm else number % of_each, drafts=bool(arm)) for arm in arms]
            ring.begin(len(arms))
            asking = [
                pool.submit(in_turn, candidate.root, texts.prompts, arm, many, (place, len(arms)))
                for place, (pool, arm) in enumerate(zip(pools, arms, strict=True))
            ]
            return [each.result(WITHIN_S) for each in asking]

        yield asked


def load(root: Path, *, drafts: bool) -> None:
    """Have a process load its engine."""
    engine_of(root, drafts=drafts)


@cache
def engine_of(root: Path, *, drafts: bool) -> Engine:
    settings = replace(engine_settings(root, load_manifest(root).recipe), keeps_texts=False)
    if not drafts:
        settings = replace(settings, method="none", draft_len=0, options={})
    return Engine.load(root / TARGET, root / DRAFT if drafts and (root / DRAFT).is_dir() else None, settings)


def rounds(engine: Asked, arms: Sequence[Schedule], many: int) -> list[float]:
    """Return each arm's tokens a second by its fastest stretches."""
    runs = [engine(arms, many, number) for number in range(ROUNDS)]
    return [tokens_per_s(each) for each in zip(*runs, strict=True)]


def tokens_per_s(runs: Sequence[Stretches]) -> float:
    """Return the speed of an arm; raises ValueError where its runs did not all do the same."""
    stretches = list(zip(*runs, strict=True))
    if any(len({tokens for tokens, _ in each}) > 1 for each in stretches):
        raise ValueError("two runs of one arm have other tokens")
    return sum(tokens for tokens, _ in runs[0]) / sum(min(seconds for _, seconds in each) for each in stretches)


def in_turn(
    root: Path, said: Sequence[Sequence[int]], schedule: Schedule, many: int, place: tuple[int, int]
) -> Stretches:
    """Run the closed loop by turns with the other places."""
    engine = engine_of(root, drafts=bool(schedule))
    engine.speculator.settings = replace(engine.settings, schedule=schedule)  # nothing runs in between
    with Turn(*place) as turn:
        return closed_loop(engine, said, many, turn.clock)


def closed_loop(engine: Engine, said: Sequence[Sequence[int]], many: int, clock: Callable[[], float]) -> Stretches:
    """Return how fast tokens come while `many` requests run.

    The first ones are of all lengths up to the others', so that requests end one by one as they do on a server. Timed
    is from where all of these have ended until no more can begin: while as many end as are asked of each prompt.
    """
    from trtspec.engine.generation.request import Request, Update

    timed = len(said) * math.ceil(A_PLACE * many / len(said))
    lens = [*(TOKENS * place // many for place in range(1, many + 1)), *[TOKENS] * (timed + many)]
    left, lock, done = iter(zip(cycle(said), lens, strict=False)), threading.Lock(), threading.Event()
    running = ended = tokens = 0
    seen = [(tokens, clock())]  # tokens so far, and when
    marks: list[int] = []  # in `seen`

    def begin() -> None:
        nonlocal running
        with lock:
            prompt, length = next(left, (None, 0))
            if ended == many or (prompt is None and len(marks) == 1):
                marks.append(len(seen) - 1)
            running += prompt is not None
            if running == 0:
                done.set()
        if prompt is not None:
            engine.submit(Request(prompt, length), take)

    def take(update: Update) -> None:
        nonlocal running, ended, tokens
        tokens += len(update.new_ids)
        seen.append((tokens, clock()))
        if update.finish_reason:
            with lock:
                running, ended = running - 1, ended + 1
            begin()

    def start(update: Update) -> None:
        for _ in range(many):  # from the engine's own thread: all of them are there when it looks for requests again
            begin()

    engine.submit(Request(said[0], 1), start)
    if not done.wait(WITHIN_S):
        raise SystemExit("the engine did not end in time")
    started, stopped = marks
    ends = [*range(started, stopped, STRETCH * many), stopped]
    return [(seen[end][0] - seen[begin][0], seen[end][1] - seen[begin][1]) for begin, end in pairwise(ends)]


if __name__ == "__main__":
    main()
