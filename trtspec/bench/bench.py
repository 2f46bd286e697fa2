# SPDX-License-Identifier: Apache-2.0
"""Baseline against speculation on the same engine in the same run: in this process, or over a server's HTTP.

Requests go one at a time (batch 1), each prompt once without and once with speculation, turn and turn about, so that
both meet the same weather on a machine that others use too. The speed-up is that of these pairs (`speedup.py`); every
run's tokens/s is reported beside it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

from trtspec.bench.artifact import OpenArtifact
from trtspec.bench.speedup import Speedup, speedup_of
from trtspec.core.errors import DeployError
from trtspec.engine.generation.request import Result, Stats
from trtspec.serving.triton.client import Client

FORMAT_VERSION = 1
DRAFTS_ALWAYS = "the engine drafts whatever is asked, name a server without speculation with --baseline NAME-or-URL"
ANSWERED = ("text_output", "num_output_tokens")
COUNTED = ("total_draft_tokens", "total_accepted_draft_tokens")  # not by every engine
OnProgress = Callable[[str, int, int], None]
Again = Callable[["Comparison"], bool]  # whether another run is wanted after those that were asked for
Ask = Callable[[str, bool], tuple[Hashable, Stats]]  # (prompt, whether to speculate) to (text, what it took)


@dataclass
class Side:
    """One of the two: the tokens/s of each run, and what its requests came to in all runs."""

    tokens_per_s: list[float] = field(default_factory=list)
    stats: Stats = field(default_factory=Stats)
    seconds: float = 0.0

    @property
    def median(self) -> float:
        """Return the median run's tokens/s."""
        return statistics.median(self.tokens_per_s)

    def as_dict(self) -> dict[str, Any]:
        """Return the side's part of the document."""
        return {
            "tokens_per_s": [round(sample, 2) for sample in self.tokens_per_s],
            "median_tokens_per_s": round(self.median, 2),
            "acceptance_rate": round(self.stats.acceptance_rate, 4),
            "mean_accepted_len": round(self.stats.mean_accepted_len, 3),
        }


@dataclass
class Comparison:
    """What was measured; `ratios` are the baseline's seconds over speculation's, of all prompts run by run.

    `acceptance` is the rule that drafts were accepted by, "unknown" of a server whose artifact is not at hand.
    Without `ratios` speculation alone was measured. `counts_drafts` tells whether the engine says how many it drafted.
    """

    prompts: int
    max_tokens: int
    acceptance: str
    baseline: Side = field(default_factory=Side)
    speculative: Side = field(default_factory=Side)
    ratios: list[float] = field(default_factory=list)
    identical_texts: int = 0
    counts_drafts: bool = True

    @property
    def runs(self) -> int:
        """Return how often every prompt was asked of each side."""
        return len(self.ratios) // self.prompts

    @property
    def seconds(self) -> float:
        """Return how long the requests of both sides took."""
        return self.baseline.seconds + self.speculative.seconds

    @property
    def speedup(self) -> Speedup:
        """Return how many times as fast prompts are answered with speculation."""
        by_prompt = [statistics.median(self.ratios[place :: self.prompts]) for place in range(self.prompts)]
        return speedup_of(by_prompt, self.baseline.seconds / self.speculative.seconds)

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
    again: Again = lambda comparison: False,
) -> tuple[Comparison, list[Result]]:
    """Measure an artifact's engine in this process; also returns the speculative results of the first run."""
    results: list[Result] = []

    def ask(prompt: str, speculate: bool) -> tuple[Hashable, Stats]:
        request = artifact.request(prompt, max_tokens, draft_len=None if speculate else 0)
        result = artifact.engine.generate([request])[0]
        if speculate and len(results) < len(prompts):
            results.append(result)
        return result.ids, result.stats

    artifact.engine.generate([artifact.request(prompts[0], max_tokens)])  # what is done only once is not measured
    comparison = Comparison(len(prompts), max_tokens, artifact.acceptance)
    return _compare(comparison, ask, prompts, runs, on_progress, again), results


def measure_server(
    client: Client,
    prompts: Sequence[str],
    max_tokens: int,
    runs: int,
    on_progress: OnProgress = lambda what, done, total: None,
    acceptance: str = "unknown",
    baseline: Client | None = None,
    again: Again = lambda comparison: False,
) -> Comparison:
    """Measure a running server over HTTP.

    The baseline is the same server asked to draft nothing; of an engine that drafts whatever is asked, another server.
    Raises DeployError for a server that is not ours, or that drafts whatever is asked and has no baseline; one whose
    `acceptance` is known need not count its drafts.
    """
    if baseline is None and not drafts_on_request(client):
        raise DeployError("there is nothing to compare with", hint=DRAFTS_ALWAYS)
    needed = ANSWERED if baseline or acceptance != "unknown" else ANSWERED + COUNTED
    comparison = Comparison(len(prompts), max_tokens, acceptance)

    def ask(prompt: str, speculate: bool) -> tuple[Hashable, Stats]:
        asked = {"text_input": prompt, "max_tokens": max_tokens}
        if not speculate and baseline:
            return _answer(baseline, asked, needed)[:2]
        text, stats, counts = _answer(client, asked if speculate else {**asked, "num_draft_tokens": 0}, needed)
        comparison.counts_drafts &= counts
        return text, stats

    for speculate in (True, False) if baseline else (True,):  # what a server does only once is not measured
        ask(prompts[0], speculate)
    return _compare(comparison, ask, prompts, runs, on_progress, again)


def measure_drafts(
    client: Client, prompts: Sequence[str], max_tokens: int, on_progress: OnProgress, acceptance: str
) -> Comparison:
    """Count what a server drafts and what of it is accepted, of an engine that cannot be compared with itself."""
    comparison = Comparison(len(prompts), max_tokens, acceptance)
    for number, prompt in enumerate(prompts, 1):
        _, stats, counts = _answer(client, {"text_input": prompt, "max_tokens": max_tokens}, ANSWERED)
        comparison.counts_drafts &= counts
        comparison.speculative.stats += stats
        on_progress("drafts", number, len(prompts))
    return comparison


def drafts_on_request(client: Client) -> bool:
    """Return whether a server can be asked to draft nothing, and so be compared with itself."""
    try:
        client.generate({"text_input": "Hello", "max_tokens": 1, "num_draft_tokens": 0})
    except DeployError as error:
        if "num_draft_tokens" in error.message:  # engines that decide it themselves say so by this name
            return False
        raise
    return True


def _answer(client: Client, request: dict[str, Any], needed: Sequence[str]) -> tuple[str, Stats, bool]:
    """Return a text, what it took, and whether its drafts were counted."""
    answer = client.generate({**request, "exclude_input_in_output": True})  # NVIDIA's defaults would repeat the prompt
    if missing := [key for key in needed if key not in answer]:
        raise DeployError(f"the server's answers lack {', '.join(missing)}", hint="serve an artifact of trtspec")
    return answer["text_output"], _stats(answer), all(key in answer for key in COUNTED)


def _compare(
    comparison: Comparison, ask: Ask, prompts: Sequence[str], runs: int, on_progress: OnProgress, again: Again
) -> Comparison:
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
    """Return a server's counts; the first token is the prefill's, each step gives one and what it accepted."""
    new = int(answer["num_output_tokens"])
    drafted, accepted = (int(answer.get(key, 0)) for key in COUNTED)
    return Stats(new_tokens=new, drafted=drafted, accepted=accepted, steps=max(0, new - 1 - accepted))
