# SPDX-License-Identifier: Apache-2.0
"""Compare speculation with a baseline on the same engine in the same run, in this process or over a server's HTTP.

Requests run one at a time (batch 1). Each prompt runs once without and once with speculation, in alternating order, so
that load from other programs affects both sides equally. The speed-up is computed from these pairs (`speedup.py`);
tokens/s is reported for every run.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

from trtspec.bench.artifact import OpenArtifact
from trtspec.bench.speedup import Speedup, estimate_speedup
from trtspec.core.errors import DeployError
from trtspec.engine.generation.request import EngineResult, Stats
from trtspec.serving.triton.client import Client

FORMAT_VERSION = 1
DRAFTS_ALWAYS = "the engine cannot switch drafting off; give a server without speculation with --baseline NAME-or-URL"
ANSWERED = ("text_output", "num_output_tokens")
COUNTED = ("total_draft_tokens", "total_accepted_draft_tokens")  # not reported by every engine
OnProgress = Callable[[str, int, int], None]
RunAgain = Callable[["BenchComparison"], bool]  # whether to add a run after the requested ones
Ask = Callable[[str, bool], tuple[Hashable, Stats]]  # (prompt, speculate) to (text, its statistics)


@dataclass
class BenchSide:
    """One side of the comparison: tokens/s of each run, and the statistics and seconds of all its requests."""

    tokens_per_s: list[float] = field(default_factory=list)
    stats: Stats = field(default_factory=Stats)
    seconds: float = 0.0

    @property
    def median(self) -> float:
        """Return the tokens/s of the median run."""
        return statistics.median(self.tokens_per_s)

    def as_dict(self) -> dict[str, Any]:
        """Return this side's fields of the JSON document."""
        return {
            "tokens_per_s": [round(sample, 2) for sample in self.tokens_per_s],
            "median_tokens_per_s": round(self.median, 2),
            "acceptance_rate": round(self.stats.acceptance_rate, 4),
            "mean_accepted_len": round(self.stats.mean_accepted_len, 3),
        }


@dataclass
class BenchComparison:
    """Results of a comparison; `ratios` are baseline seconds / speculative seconds of all prompts, run by run.

    `acceptance` is the acceptance rule, "unknown" for a server whose artifact is not available. If `ratios` is empty,
    only speculation was measured. `counts_drafts` is whether the engine reports how many tokens it drafted.
    """

    prompts: int
    max_tokens: int
    acceptance: str
    baseline: BenchSide = field(default_factory=BenchSide)
    speculative: BenchSide = field(default_factory=BenchSide)
    ratios: list[float] = field(default_factory=list)
    identical_texts: int = 0
    counts_drafts: bool = True

    @property
    def runs(self) -> int:
        """Return how often each side ran every prompt."""
        return len(self.ratios) // self.prompts

    @property
    def seconds(self) -> float:
        """Return the total seconds of the requests of both sides."""
        return self.baseline.seconds + self.speculative.seconds

    @property
    def speedup(self) -> Speedup:
        """Return the speed-up from speculation."""
        by_prompt = [statistics.median(self.ratios[place :: self.prompts]) for place in range(self.prompts)]
        return estimate_speedup(by_prompt, self.baseline.seconds / self.speculative.seconds)

    def as_dict(self) -> dict[str, Any]:
        """Return the document of `bench --json`."""
        return {
            "format_version": FORMAT_VERSION,
            "prompts": self.prompts,
            "max_tokens": self.max_tokens,
            "acceptance": self.acceptance,
            "baseline": self.baseline.as_dict(),
            "speculative": self.speculative.as_dict(),
            **self.speedup.as_dict(),
            "identical_texts": self.identical_texts,
        }


def measure_engine(
    artifact: OpenArtifact,
    prompts: Sequence[str],
    max_tokens: int,
    runs: int,
    on_progress: OnProgress = lambda what, done, total: None,
    again: RunAgain = lambda comparison: False,
) -> tuple[BenchComparison, list[EngineResult]]:
    """Compare on an artifact's engine in this process; also return the speculative results of the first run."""
    results: list[EngineResult] = []

    def ask(prompt: str, speculate: bool) -> tuple[Hashable, Stats]:
        request = artifact.request(prompt, max_tokens, draft_len=None if speculate else 0)
        result = artifact.engine.generate([request])[0]
        if speculate and len(results) < len(prompts):
            results.append(result)
        return result.ids, result.stats

    artifact.engine.generate([artifact.request(prompts[0], max_tokens)])  # warm-up, not measured
    comparison = BenchComparison(len(prompts), max_tokens, artifact.acceptance)
    return _compare(comparison, ask, prompts, runs, on_progress, again), results


def measure_server(
    client: Client,
    prompts: Sequence[str],
    max_tokens: int,
    runs: int,
    on_progress: OnProgress = lambda what, done, total: None,
    acceptance: str = "unknown",
    baseline: Client | None = None,
    again: RunAgain = lambda comparison: False,
) -> BenchComparison:
    """Compare on a running server over HTTP.

    The baseline is the same server with drafting switched off, or `baseline` if the engine cannot switch it off. Raises
    DeployError if the server was not built by trtspec, or cannot switch drafting off and no baseline is given. A server
    whose `acceptance` is known need not report draft counts.
    """
    if baseline is None and not can_disable_drafts(client):
        raise DeployError("no baseline to compare with", hint=DRAFTS_ALWAYS)
    needed = ANSWERED if baseline or acceptance != "unknown" else ANSWERED + COUNTED
    comparison = BenchComparison(len(prompts), max_tokens, acceptance)

    def ask(prompt: str, speculate: bool) -> tuple[Hashable, Stats]:
        asked = {"text_input": prompt, "max_tokens": max_tokens}
        if not speculate and baseline:
            return _answer(baseline, asked, needed)[:2]
        text, stats, counts = _answer(client, asked if speculate else {**asked, "num_draft_tokens": 0}, needed)
        comparison.counts_drafts &= counts
        return text, stats

    for speculate in (True, False) if baseline else (True,):  # warm-up, not measured
        ask(prompts[0], speculate)
    return _compare(comparison, ask, prompts, runs, on_progress, again)


def measure_drafts(
    client: Client, prompts: Sequence[str], max_tokens: int, on_progress: OnProgress, acceptance: str
) -> BenchComparison:
    """Count drafted and accepted tokens on a server that cannot be compared with itself."""
    comparison = BenchComparison(len(prompts), max_tokens, acceptance)
    for number, prompt in enumerate(prompts, 1):
        _, stats, counts = _answer(client, {"text_input": prompt, "max_tokens": max_tokens}, ANSWERED)
        comparison.counts_drafts &= counts
        comparison.speculative.stats += stats
        on_progress("drafts", number, len(prompts))
    return comparison


def can_disable_drafts(client: Client) -> bool:
    """Return whether the server can switch drafting off for a request."""
    try:
        client.generate({"text_input": "Hello", "max_tokens": 1, "num_draft_tokens": 0})
    except DeployError as error:
        if "num_draft_tokens" in error.message:  # the error of engines that fix the draft length names this field
            return False
        raise
    return True


def _answer(client: Client, request: dict[str, Any], needed: Sequence[str]) -> tuple[str, Stats, bool]:
    """Return the text, its statistics, and whether the server reported draft counts."""
    answer = client.generate({**request, "exclude_input_in_output": True})  # NVIDIA's defaults include the prompt
    if missing := [key for key in needed if key not in answer]:
        raise DeployError(
            f"the server's responses lack {', '.join(missing)}", hint="serve an artifact built by trtspec"
        )
    return answer["text_output"], _stats(answer), all(key in answer for key in COUNTED)


def _compare(
    comparison: BenchComparison, ask: Ask, prompts: Sequence[str], runs: int, on_progress: OnProgress, again: RunAgain
) -> BenchComparison:
    sides = {False: comparison.baseline, True: comparison.speculative}
    while (run := comparison.runs) < runs or again(comparison):
        spent, tokens = {False: 0.0, True: 0.0}, {False: 0, True: 0}
        for number, prompt in enumerate(prompts):
            texts, seconds = {}, {}
            for speculate in (False, True) if number % 2 else (True, False):
                started = time.perf_counter()
                texts[speculate], stats = ask(prompt, speculate)
                seconds[speculate] = time.perf_counter() - started
                sides[speculate].stats += stats
                spent[speculate] += seconds[speculate]
                tokens[speculate] += stats.new_tokens
            comparison.ratios.append(seconds[False] / seconds[True])
            comparison.identical_texts += run == 0 and texts[False] == texts[True]
            on_progress(f"run {run + 1} of {max(run + 1, runs)}", number + 1, len(prompts))
        for speculate, side in sides.items():
            side.tokens_per_s.append(tokens[speculate] / spent[speculate])
            side.seconds += spent[speculate]
    return comparison


def _stats(answer: dict[str, Any]) -> Stats:
    """Return statistics from a response's counts.

    The prefill yields the first token; each step yields one token plus the accepted draft tokens.
    """
    new = int(answer["num_output_tokens"])
    drafted, accepted = (int(answer.get(key, 0)) for key in COUNTED)
    return Stats(new_tokens=new, drafted=drafted, accepted=accepted, steps=max(0, new - 1 - accepted))
