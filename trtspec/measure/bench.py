# SPDX-License-Identifier: Apache-2.0
"""Baseline against speculation on the same engine in the same run: in this process, or over a server's HTTP.

Both take the prompts one at a time (batch 1), alternating between the two, and report every run's raw sample.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from trtspec.engines.embedded.request import Result
from trtspec.errors import DeployError
from trtspec.measure.artifact import OpenArtifact
from trtspec.triton.client import Client

FORMAT_VERSION = 1
COUNTED = ("text_output", "num_output_tokens", "total_draft_tokens", "total_accepted_draft_tokens")
OnProgress = Callable[[str, int, int], None]


@dataclass
class Side:
    """One of the two: tokens per second of each run, and what its requests came to in all runs."""

    tokens_per_s: list[float] = field(default_factory=list)
    new_tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    steps: int = 0

    @property
    def median(self) -> float:
        """Return the median run's tokens/s."""
        return statistics.median(self.tokens_per_s)

    @property
    def acceptance_rate(self) -> float:
        """Return accepted / drafted tokens; 0 where nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def mean_accepted_len(self) -> float:
        """Return the tokens of a decode step on average, the target's own included."""
        return 1.0 + self.accepted / self.steps if self.steps else 1.0

    def as_dict(self) -> dict[str, Any]:
        """Return the side's part of the document."""
        return {
            "tokens_per_s": [round(sample, 2) for sample in self.tokens_per_s],
            "median_tokens_per_s": round(self.median, 2),
            "acceptance_rate": round(self.acceptance_rate, 4),
            "mean_accepted_len": round(self.mean_accepted_len, 3),
        }


@dataclass
class Comparison:
    """What was measured; `results` are the speculative texts of the first run, where they came from this process."""

    prompts: int
    max_tokens: int
    baseline: Side = field(default_factory=Side)
    speculative: Side = field(default_factory=Side)
    identical_texts: int = 0
    results: list[Result] = field(default_factory=list)

    @property
    def speedup(self) -> float:
        """Return the ratio of the medians; 1 where every text ended before its first token."""
        return self.speculative.median / self.baseline.median if self.baseline.median else 1.0

    def as_dict(self) -> dict[str, Any]:
        """Return the document of `bench --json`."""
        return {
            "format_version": FORMAT_VERSION,
            "prompts": self.prompts,
            "max_tokens": self.max_tokens,
            "baseline": self.baseline.as_dict(),
            "speculative": self.speculative.as_dict(),
            "speedup": round(self.speedup, 3),
            "identical_texts": self.identical_texts,
        }


def measure_engine(
    artifact: OpenArtifact,
    prompts: Sequence[str],
    max_tokens: int,
    runs: int,
    on_progress: OnProgress = lambda what, done, total: None,
) -> Comparison:
    """Measure an artifact's engine in this process."""
    comparison = Comparison(len(prompts), max_tokens)
    baseline = [artifact.request(prompt, max_tokens, draft_len=0) for prompt in prompts]
    speculative = [artifact.request(prompt, max_tokens) for prompt in prompts]
    artifact.engine.generate([speculative[0]])  # what is done only once is not measured
    for run in range(runs):
        texts = []
        for name, side, requests in (
            ("baseline", comparison.baseline, baseline),
            ("speculative", comparison.speculative, speculative),
        ):
            started, results = time.perf_counter(), []
            for number, request in enumerate(requests):
                results += artifact.engine.generate([request])
                on_progress(f"{name}, run {run + 1} of {runs}", number + 1, len(requests))
            _add_run(side, results, time.perf_counter() - started)
            texts.append([result.ids for result in results])
        if run == 0:
            comparison.results = results
            comparison.identical_texts = sum(map(_equal, *texts))
    return comparison


def measure_server(
    client: Client,
    prompts: Sequence[str],
    max_tokens: int,
    runs: int,
    on_progress: OnProgress = lambda what, done, total: None,
) -> Comparison:
    """Measure a running server over HTTP; the baseline is the same server asked to draft nothing."""
    comparison = Comparison(len(prompts), max_tokens)
    first = client.generate({"text_input": prompts[0], "max_tokens": 1})
    if missing := [key for key in COUNTED if key not in first]:
        raise DeployError(f"the server's answers lack {', '.join(missing)}", hint="serve an artifact of trtspec")
    for run in range(runs):
        texts = []
        for name, side, extra in (
            ("baseline", comparison.baseline, {"num_draft_tokens": 0}),
            ("speculative", comparison.speculative, {}),
        ):
            started, answers = time.perf_counter(), []
            for number, prompt in enumerate(prompts):
                answers.append(client.generate({"text_input": prompt, "max_tokens": max_tokens, **extra}))
                on_progress(f"{name}, run {run + 1} of {runs}", number + 1, len(prompts))
            _add_answers(side, answers, time.perf_counter() - started)
            texts.append([answer["text_output"] for answer in answers])
        if run == 0:
            comparison.identical_texts = sum(map(_equal, *texts))
    return comparison


def _equal(one: object, other: object) -> bool:
    return one == other


def _add_run(side: Side, results: Sequence[Result], seconds: float) -> None:
    new = sum(len(result.ids) for result in results)
    side.tokens_per_s.append(new / seconds)
    side.new_tokens += new
    for result in results:
        side.drafted += result.stats.drafted
        side.accepted += result.stats.accepted
        side.steps += result.stats.steps


def _add_answers(side: Side, answers: Sequence[dict[str, Any]], seconds: float) -> None:
    new = sum(int(answer["num_output_tokens"]) for answer in answers)
    side.tokens_per_s.append(new / seconds)
    side.new_tokens += new
    for answer in answers:
        accepted = int(answer["total_accepted_draft_tokens"])
        side.drafted += int(answer["total_draft_tokens"])
        side.accepted += accepted
        # the first token is the prefill's, each further step gives one and what it accepted
        side.steps += max(0, int(answer["num_output_tokens"]) - 1 - accepted)
