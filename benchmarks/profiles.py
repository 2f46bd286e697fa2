# SPDX-License-Identifier: Apache-2.0
"""Compare the predictions of `trtspec profile` with the engine's measured speed.

    python benchmarks/profiles.py [--recipes quickstart quickstart-ngram quickstart-eagle3] [--out FILE.json]

Claims: the expected speed-up of a draft length is within 15 % of the measured one; the chosen length is within 5 % of
the fastest; the schedule is never slower than the better of the target alone and a fixed draft length (at least 0.98 of
it) at any concurrency.

Prediction and measurement are of the same run: closed loops of greedy requests with complete texts and prefills, at
full concurrency. At each concurrency, the expected speed-up uses step times measured before and after the closed loops,
whichever are faster. Each arm has its own process (a second engine in one process would add up to 3 ms to each step);
the target alone uses an engine without a drafter. Arms take turns of half a second (turns.py), and switch processes
between rounds. The prefix cache is off, because the prompts repeat. All runs of an arm execute the same steps in
the same order, so each stretch of steps counts with its fastest run, because other load only adds time. Each run uses
all prompts on which the acceptance is measured. `noise` is the difference between two equal arms. A recipe takes half
an hour.
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
from trtspec.bench.profile.candidates import ProfileCandidate, SampleText
from trtspec.bench.profile.engine_profiler import generate_responses, measure
from trtspec.bench.profile.recommend import CandidateMeasurements, recommend
from trtspec.core.paths import recipes_dir
from trtspec.engine.engine import Engine
from trtspec.engine.prompts.load import load_prompts
from trtspec.store.artifact import load_manifest

RECIPES = ("quickstart", "quickstart-ngram", "quickstart-eagle3")
MAX_DRAFT_LEN, MAX_BATCH = 10, 64
BATCHES, LENS = (1, 4, 16), (1, 2, 4, 6, 8, 10)
CONCURRENCIES = (1, 2, 4, 8, 16, 32, 64)
PROMPTS, TOKENS, ROUNDS = 24, 96, 4
STRETCH = 8  # steps
A_PLACE = 2  # requests per concurrent request, rounded up to a multiple of all prompts
WITHIN_S = 600.0

Schedule = tuple[tuple[int, int], ...]
Stretches = list[tuple[int, float]]  # tokens and seconds
Asked = Callable[[Sequence[Schedule], int, int], list[Stretches]]  # (arms, concurrency, round number)

ALONE: Schedule = ()  # an engine without a drafter


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


def build(name: str, folder: Path) -> ProfileCandidate:
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
    return ProfileCandidate(speculation.method, None, dict(speculation.options), True, folder / name)


def examine(candidate: ProfileCandidate, parts: Sequence[str]) -> dict[str, Any]:
    prompts = load_prompts(recipes_dir() / "prompts" / "quickstart.jsonl")[:PROMPTS]
    with open_artifact(candidate.root) as artifact:
        texts, _ = generate_responses(artifact, prompts, TOKENS, lambda what, done, total: None)
    compared = {"lens": compare_lens, "schedule": compare_schedule}
    with loaded(candidate, texts) as engine:
        return {part: compared[part](candidate, texts, engine) for part in parts}


def compare_lens(candidate: ProfileCandidate, texts: Sequence[SampleText], engine: Asked) -> dict[str, Any]:
    """Compare the expected speed-up of each draft length with the engine's."""
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


def measured_at(candidate: ProfileCandidate, texts: Sequence[SampleText], *batches: int) -> CandidateMeasurements:
    return measure(candidate, texts, batches, lambda what, done, total: None)


def faster(one: CandidateMeasurements, other: CandidateMeasurements) -> CandidateMeasurements:
    """Return a candidate's two measurements combined, with the faster steps and prefills."""
    seconds = {case: min(taken, other.seconds[case]) for case, taken in one.seconds.items()}
    prefills = {
        batch: (min(alone, other.prefills[batch][0]), min(whole, other.prefills[batch][1]))
        for batch, (alone, whole) in one.prefills.items()
    }
    return replace(one, seconds=seconds, prefills=prefills)


def compare_schedule(candidate: ProfileCandidate, texts: Sequence[SampleText], engine: Asked) -> dict[str, Any]:
    """Compare the schedule with the target alone and the fixed length, at each concurrency.

    `noise` is the difference between two equal arms: the fixed length is measured twice.
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
def loaded(candidate: ProfileCandidate, texts: Sequence[SampleText]) -> Iterator[Asked]:
    """Yield engines in separate processes, as many with and without a drafter as there are arms.

    Equal processes differ by a few percent, so rounds rotate the arms through them.
    """
    context, places = get_context("spawn"), MAX_DRAFT_LEN + 1
    ring = Ring.make(context, places)
    with ExitStack() as stack:

        @cache
        def process(number: int, *, drafts: bool) -> ProcessPoolExecutor:
            pool = stack.enter_context(ProcessPoolExecutor(1, context, join, (ring,)))
            pool.submit(load, candidate.root, drafts=drafts).result(WITHIN_S)  # loads sequentially, while no arm runs
            return pool

        def asked(arms: Sequence[Schedule], many: int, number: int) -> list[Stretches]:
            of_each = sum(map(bool, arms))
            numbers = (each % of_each for each in count(number))
            pools = [process(next(numbers) if arm else number % of_each, drafts=bool(arm)) for arm in arms]
            ring.begin(len(arms))
            asking = [
                pool.submit(in_turn, candidate.root, [text.prompt for text in texts], arm, many, (place, len(arms)))
                for place, (pool, arm) in enumerate(zip(pools, arms, strict=True))
            ]
            return [each.result(WITHIN_S) for each in asking]

        yield asked


def load(root: Path, *, drafts: bool) -> None:
    """Load the engine in a worker process."""
    engine_of(root, drafts=drafts)


@cache
def engine_of(root: Path, *, drafts: bool) -> Engine:
    settings = replace(engine_settings(root, load_manifest(root).recipe), keeps_texts=False)
    if not drafts:
        settings = replace(settings, method="none", draft_len=0, options={})
    return Engine(root / TARGET, root / DRAFT if drafts and (root / DRAFT).is_dir() else None, settings)


def rounds(engine: Asked, arms: Sequence[Schedule], many: int) -> list[float]:
    """Return each arm's tokens per second from its fastest stretches."""
    runs = [engine(arms, many, number) for number in range(ROUNDS)]
    return [tokens_per_s(each) for each in zip(*runs, strict=True)]


def tokens_per_s(runs: Sequence[Stretches]) -> float:
    """Return the speed of an arm; raise ValueError if its runs differ in their steps."""
    stretches = list(zip(*runs, strict=True))
    if any(len({tokens for tokens, _ in each}) > 1 for each in stretches):
        raise ValueError("two runs of one arm differ in their tokens")
    return sum(tokens for tokens, _ in runs[0]) / sum(min(seconds for _, seconds in each) for each in stretches)


def in_turn(
    root: Path, said: Sequence[Sequence[int]], schedule: Schedule, many: int, place: tuple[int, int]
) -> Stretches:
    """Run the closed loop, taking turns with the other processes."""
    engine = engine_of(root, drafts=bool(schedule))
    engine.speculator.settings = replace(engine.settings, schedule=schedule)  # no request is running
    with Turn(*place) as turn:
        return closed_loop(engine, said, many, turn.clock)


def closed_loop(engine: Engine, said: Sequence[Sequence[int]], many: int, clock: Callable[[], float]) -> Stretches:
    """Return the tokens and seconds of stretches while `many` requests run.

    The first requests have staggered lengths, so that requests end one by one as on a server. The timed part starts
    after these have ended and stops when no new request can start, so that each prompt ends equally often.
    """
    from trtspec.engine.generation.request import EngineRequest, Update

    timed = len(said) * math.ceil(A_PLACE * many / len(said))
    lens = [*(TOKENS * place // many for place in range(1, many + 1)), *[TOKENS] * (timed + many)]
    left, lock, done = iter(zip(cycle(said), lens, strict=False)), threading.Lock(), threading.Event()
    running = ended = tokens = 0
    seen = [(tokens, clock())]  # (tokens so far, time)
    marks: list[int] = []  # indices of `seen`

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
            engine.submit(EngineRequest(prompt, length), take)

    def take(update: Update) -> None:
        nonlocal running, ended, tokens
        tokens += len(update.new_ids)
        seen.append((tokens, clock()))
        if update.finish_reason:
            with lock:
                running, ended = running - 1, ended + 1
            begin()

    def start(update: Update) -> None:
        for _ in range(many):  # submitted on the engine's thread, so that it sees all of them together
            begin()

    engine.submit(EngineRequest(said[0], 1), start)
    if not done.wait(WITHIN_S):
        raise SystemExit("the engine did not finish in time")
    started, stopped = marks
    ends = [*range(started, stopped, STRETCH * many), stopped]
    return [(seen[end][0] - seen[begin][0], seen[end][1] - seen[begin][1]) for begin, end in pairwise(ends)]


if __name__ == "__main__":
    main()
