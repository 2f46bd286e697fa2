# SPDX-License-Identifier: Apache-2.0
"""Measure the speed-up of block drafting with a confidence threshold over the best other method.

    python benchmarks/block_drafting.py [--runs 3] [--max-tokens 64] [--out FILE.json]

Runs on the quickstart target, on a CPU at batch 1; the goal is 1.15. Each method uses the draft length that was fastest
on other prompts. Each possible length of a method is built and loaded in its own process, because a second engine in
one process slows the first. Every second prompt of each kind selects a method's length, the one with the highest
geometric mean over the kinds; the remaining prompts compare the methods. All arms answer a prompt in turn, so that
drifting machine speed affects them equally, and the fastest run of a response counts. The other methods are the fastest
of methods.py.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.machine import environment
from benchmarks.methods import CONFIDENCE, prompts_by_kind
from trtspec.core.paths import recipes_dir

if TYPE_CHECKING:
    from trtspec.bench.artifact import OpenArtifact

BLOCK = "dspark"
CHAIN = [[0] * depth for depth in range(1, 5)]
# Recipe and possible draft lengths by method.
METHODS: dict[str, tuple[str, list[dict[str, Any]]]] = {
    "draft_target": (
        "quickstart",
        [
            *({"draft_len": length} for length in (5, 9, 11)),
            *({"draft_len": length, "confidence": CONFIDENCE} for length in (11, 15, 19)),
        ],
    ),
    "medusa": ("quickstart-medusa", [{}, {"options.choices": CHAIN}]),
    "eagle3": ("quickstart-eagle3", [{"draft_len": length} for length in (5, 7, 9)]),
    BLOCK: ("quickstart-dspark", [{"draft_len": length, "confidence": CONFIDENCE} for length in (7, 9, 11, 15)]),
}
GOAL = 1.15
WITHIN_S = 600.0
OPENED = ExitStack()  # resources of a worker process, for its lifetime


@dataclass(frozen=True)
class Arm:
    """A method with one draft length, as overrides of its recipe, and the artifact built from it."""

    method: str
    sets: Mapping[str, Any] = field(compare=False)
    root: Path

    def __str__(self) -> str:
        return " ".join([self.method, *(f"{key}={value}" for key, value in self.sets.items())])


@dataclass(frozen=True)
class Answer:
    """An arm's response, its duration and its number of steps."""

    ids: tuple[int, ...]
    seconds: float
    steps: int


def build(root: Path, recipe: str, sets: Mapping[str, Any]) -> None:
    overrides = [word for key, value in sets.items() for word in ("--set", f"speculation.{key}={json.dumps(value)}")]
    command = [sys.executable, "-m", "trtspec", "build", str(recipes_dir() / f"{recipe}.yaml"), "--out", str(root)]
    done = subprocess.run([*command, *overrides], capture_output=True, text=True, check=False, timeout=WITHIN_S)
    if done.returncode:
        sys.exit(f"{' '.join([*command, *overrides])}\n{done.stderr}")


def built(folder: Path) -> list[Arm]:
    arms = []
    for method, (recipe, choices) in METHODS.items():
        for number, sets in enumerate(choices):
            arms.append(Arm(method, sets, folder / f"{method}-{number}"))
            build(arms[-1].root, recipe, sets)
    return arms


@cache
def opened(root: Path) -> OpenArtifact:
    from trtspec.bench.artifact import open_artifact

    return OPENED.enter_context(open_artifact(root))


def answer(root: Path, text: str, max_tokens: int, draft_len: int | None) -> Answer:
    """Generate the response to a prompt in the arm's process; a `draft_len` of 0 runs the target alone."""
    artifact = opened(root)
    request = artifact.request(text, max_tokens, draft_len=draft_len)
    started = time.perf_counter()
    result = artifact.engine.generate([request])[0]
    return Answer(tuple(result.ids), time.perf_counter() - started, result.stats.steps)


class Rounds:
    """Runs arms in turn, each in its own process; the target alone is the first arm's engine without drafts."""

    def __init__(self, arms: Sequence[Arm], max_tokens: int, runs: int) -> None:
        self._max_tokens, self._runs, self._stack = max_tokens, runs, ExitStack()
        own = {arm: ProcessPoolExecutor(1, get_context("spawn")) for arm in arms}
        for pool in own.values():
            self._stack.callback(pool.shutdown, cancel_futures=True)
        self._asked = {"alone": (own[arms[0]], arms[0].root, 0)}
        self._asked |= {str(arm): (pool, arm.root, None) for arm, pool in own.items()}

    def close(self) -> None:
        self._stack.close()

    def fastest(self, text: str) -> dict[str, Answer]:
        """Return each arm's fastest response; every second round runs the arms in reverse."""
        found: dict[str, Answer] = {}
        for number in range(self._runs):
            for name in [*self._asked][:: -1 if number % 2 else 1]:
                pool, root, draft_len = self._asked[name]
                given = pool.submit(answer, root, text, self._max_tokens, draft_len).result(WITHIN_S)
                found[name] = min(found.get(name, given), given, key=lambda each: each.seconds)
        return found


def by_kind(asked: Rounds, prompts: Mapping[str, Sequence[str]]) -> dict[str, dict[str, Any]]:
    """Return each arm's speed-up over the target alone and its tokens per step, by kind."""
    asked.fastest(next(iter(prompts.values()))[0])  # warm-up of each engine
    found: dict[str, dict[str, Any]] = {}
    for kind, texts in prompts.items():
        answers = [asked.fastest(text) for text in texts]
        for name in answers[0]:
            own = [each[name] for each in answers]
            result = found.setdefault(name, {"speedup": {}, "mean_len": {}, "same_texts": 0})
            ratios = [each["alone"].seconds / each[name].seconds for each in answers]
            result["speedup"][kind] = round(statistics.median(ratios), 3)
            result["mean_len"][kind] = round(sum(len(each.ids) for each in own) / sum(each.steps for each in own), 2)
            result["same_texts"] += sum(each["alone"].ids == each[name].ids for each in answers)
    for result in found.values():
        result["geometric_mean"] = round(statistics.geometric_mean(result["speedup"].values()), 3)
    return found


def table(title: str, found: Mapping[str, dict[str, Any]]) -> str:
    lines = [f"{title:<66}{'mean':>8}  {'by kind':<36}tokens per step"]
    for name, result in found.items():
        speedups, lens = (" ".join(f"{each:7.2f}" for each in result[key].values()) for key in ("speedup", "mean_len"))
        lines.append(f"{name[:65]:<66}{result['geometric_mean']:>8.3f}  {speedups:<36}{lens}")
    return "\n".join(lines)


def compare(arms: Sequence[Arm], max_tokens: int, runs: int) -> dict[str, Any]:
    prompts = prompts_by_kind()
    with closing(Rounds(arms, max_tokens, runs)) as asked:
        choosing = by_kind(asked, {kind: texts[::2] for kind, texts in prompts.items()})
    print(table("choosing", choosing), file=sys.stderr, flush=True)
    best = {
        method: max((arm for arm in arms if arm.method == method), key=lambda arm: choosing[str(arm)]["geometric_mean"])
        for method in METHODS
    }
    with closing(Rounds([*best.values()], max_tokens, runs)) as asked:
        compared = by_kind(asked, {kind: texts[1::2] for kind, texts in prompts.items()})
    print(table("on other prompts", compared), file=sys.stderr, flush=True)
    others = {method: compared[str(arm)]["geometric_mean"] for method, arm in best.items() if method != BLOCK}
    second = max(others, key=others.__getitem__)
    times = round(compared[str(best[BLOCK])]["geometric_mean"] / others[second], 3)
    counted = [len(texts[1::2]) for texts in prompts.values()]
    return {
        "reached": times >= GOAL and all(each["same_texts"] == sum(counted) for each in compared.values()),
        "times_the_best_other": times,
        "best_other": second,
        "prompts_by_kind": sorted({*counted}),
        "compared": compared,
        "choosing": choosing,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    with TemporaryDirectory() as folder:
        found = compare(built(Path(folder)), asked.max_tokens, asked.runs)
    document = found | {"environment": environment() | {"runs": asked.runs, "max_tokens": asked.max_tokens}}
    print(f"block drafting is {found['times_the_best_other']} times as fast as {found['best_other']}")
    if asked.out:
        asked.out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
