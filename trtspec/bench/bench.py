# SPDX-License-Identifier: Apache-2.0
"""Speed measurements with one request at a time (batch 1), in this process or on a server over HTTP.

A comparison runs each prompt once without and once with speculation, in alternating order, so that other load on the
machine affects both sides equally. The speed-up is computed from these pairs (`speedup.py`); tokens/s is reported for
every run. A baseline measures the target alone for later comparisons; its document identifies the target, the prompts
and the machine.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from trtspec.bench.artifact import OpenArtifact
from trtspec.bench.documents import describe_machine, describe_target, prompts_sha256
from trtspec.bench.gates import NEEDS_BASELINE
from trtspec.bench.speedup import BenchComparison
from trtspec.core.errors import DeployError
from trtspec.core.installation import __version__
from trtspec.engine.generation.request import EngineResult, Stats
from trtspec.engine.prompts.prompt import Prompt
from trtspec.engine.simulated_acceptance import SIMULATED
from trtspec.serving.triton.client import Client
from trtspec.store.artifact import Manifest, manifest_sha256

ANSWERED = ("text_output", "num_output_tokens")
COUNTED = ("total_draft_tokens", "total_accepted_draft_tokens")  # some engines do not report these
ALONE = {"num_draft_tokens": 0}  # request fields that disable drafting
OnProgress = Callable[[str, int, int], None]
RunAgain = Callable[[BenchComparison], bool]  # returns True to add a run after the requested ones
Ask = Callable[[str, bool], tuple[Hashable, Stats]]  # (prompt, speculate) -> (text, its statistics)
DEPLOY_WITHOUT_DRAFTS = "build and deploy it with --set speculation.method=none, and give that deployment's name"
AskAlone = Callable[[str], int]  # (prompt) -> number of generated tokens


def measure_engine(
    artifact: OpenArtifact,
    prompts: Sequence[str],
    max_tokens: int,
    runs: int,
    on_progress: OnProgress = lambda what, done, total: None,
    again: RunAgain = lambda comparison: False,
) -> tuple[BenchComparison, list[EngineResult]]:
    """Compare an artifact's engine in this process with and without speculation.

    Also returns the speculative result of each prompt in the first run. With simulated acceptance, texts do not end
    before `max_tokens`, because the texts of both sides differ and their times are compared.
    """
    results: list[EngineResult] = []
    options: dict[str, Any] = {"end_ids": ()} if artifact.acceptance == SIMULATED else {}

    def ask(prompt: str, speculate: bool) -> tuple[Hashable, Stats]:
        request = artifact.request(prompt, max_tokens, draft_len=None if speculate else 0, **options)
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
    """Compare a running server with and without speculation over HTTP.

    The baseline is the same server with drafting disabled per request, or the server `baseline` if the engine does not
    support that. Raises DeployError if the server was not built by trtspec, or if a baseline is required but missing.
    Draft counts may be missing from responses if `acceptance` is known.
    """
    if baseline is None and not can_disable_drafts(client):
        raise DeployError("no baseline to compare with", hint=NEEDS_BASELINE)
    needed = ANSWERED if baseline or acceptance != "unknown" else ANSWERED + COUNTED
    comparison = BenchComparison(len(prompts), max_tokens, acceptance)

    def ask(prompt: str, speculate: bool) -> tuple[Hashable, Stats]:
        asked = {"text_input": prompt, "max_tokens": max_tokens}
        if not speculate and baseline:
            return _answer(baseline, asked, needed)[:2]
        text, stats, counts = _answer(client, asked if speculate else asked | ALONE, needed)
        comparison.counts_drafts &= counts
        return text, stats

    for speculate in (True, False) if baseline else (True,):  # warm-up, not measured
        ask(prompts[0], speculate)
    return _compare(comparison, ask, prompts, runs, on_progress, again)


def measure_drafts(
    client: Client, prompts: Sequence[str], max_tokens: int, on_progress: OnProgress, acceptance: str
) -> BenchComparison:
    """Count drafted and accepted tokens on a server that cannot disable drafting, without measuring its speed-up."""
    comparison = BenchComparison(len(prompts), max_tokens, acceptance)
    for number, prompt in enumerate(prompts, 1):
        _, stats, counts = _answer(client, {"text_input": prompt, "max_tokens": max_tokens}, ANSWERED)
        comparison.counts_drafts &= counts
        comparison.speculative.stats += stats
        on_progress("drafts", number, len(prompts))
    return comparison


def can_disable_drafts(client: Client) -> bool:
    """Send a short request; return True if the server can disable drafting for single requests."""
    try:
        client.generate({"text_input": "Hello", "max_tokens": 1, **ALONE})
    except DeployError as error:
        if "num_draft_tokens" in error.message:  # the error of engines that fix the draft length names this field
            return False
        raise
    return True


def _answer(client: Client, request: dict[str, Any], needed: Sequence[str]) -> tuple[str, Stats, bool]:
    """Send a request; return the response's text, its statistics, and True if the server reported draft counts."""
    # NVIDIA's default is to include the prompt, and serving.defaults: model may be to sample
    answer = client.generate({**request, "top_k": 1, "exclude_input_in_output": True})
    if missing := [key for key in needed if not isinstance(answer.get(key), str if key == "text_output" else int)]:
        message = f"the server's responses lack {', '.join(missing)}"
        raise DeployError(message, hint="serve an artifact built by trtspec")
    new = answer["num_output_tokens"]
    drafted, accepted = (int(answer.get(key, 0)) for key in COUNTED)
    # The prefill yields the first token; each step yields one token plus the accepted draft tokens.
    stats = Stats(new_tokens=new, drafted=drafted, accepted=accepted, steps=max(0, new - 1 - accepted))
    return answer["text_output"], stats, all(key in answer for key in COUNTED)


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


@dataclass(frozen=True)
class BaselineMeasurements:
    """Seconds of each request as [run][prompt], and the number of tokens in each prompt's response."""

    seconds: list[list[float]]
    new_tokens: list[int]

    @property
    def tokens_per_s(self) -> list[float]:
        return [sum(self.new_tokens) / sum(run) for run in self.seconds]

    def as_dict(self) -> dict[str, Any]:
        answers = [pair for run in self.seconds for pair in zip(run, self.new_tokens, strict=True)]
        return {
            "new_tokens": sum(self.new_tokens),
            "tokens_per_s": [round(each, 2) for each in self.tokens_per_s],
            "median_tokens_per_s": round(statistics.median(self.tokens_per_s), 2),
            "request_s": _percentiles([seconds for seconds, _ in answers]),
            "ms_per_token": _percentiles([seconds / tokens * 1e3 for seconds, tokens in answers if tokens]),
        }


def measure_baseline(
    ask: AskAlone, prompts: Sequence[Prompt], runs: int, on_progress: OnProgress
) -> BaselineMeasurements:
    """Send every prompt sequentially in each run, after one warm-up request, and measure the seconds."""
    ask(prompts[0].text)
    measured = BaselineMeasurements([[] for _ in range(runs)], [])
    for run, seconds in enumerate(measured.seconds):
        for number, prompt in enumerate(prompts, 1):
            started = time.perf_counter()
            new = ask(prompt.text)
            seconds.append(time.perf_counter() - started)
            if run == 0:
                measured.new_tokens.append(new)
            on_progress(f"run {run + 1} of {runs}", number, len(prompts))
    return measured


def ask_engine(artifact: OpenArtifact, max_tokens: int) -> AskAlone:
    """Return a function that generates without drafting on an artifact's engine in this process."""

    def ask(prompt: str) -> int:
        request = artifact.request(prompt, max_tokens, draft_len=0)
        return artifact.engine.generate([request])[0].stats.new_tokens

    return ask


def ask_server(client: Client, manifest: Manifest, max_tokens: int) -> AskAlone:
    """Return a function that generates without drafting on an artifact's server.

    Raises DeployError if the server cannot disable drafting.
    """
    drafts = manifest.recipe.speculation.method != "none"
    if drafts and not can_disable_drafts(client):
        raise DeployError("the engine cannot switch drafting off", where=client.where, hint=DEPLOY_WITHOUT_DRAFTS)
    options = {"max_tokens": max_tokens, **(ALONE if drafts else {})}
    return lambda prompt: _answer(client, {"text_input": prompt, **options}, ANSWERED)[1].new_tokens


def describe_baseline(
    root: Path,
    manifest: Manifest,
    prompts: Sequence[Prompt],
    max_tokens: int,
    measured: BaselineMeasurements,
    measured_by: str,
) -> dict[str, Any]:
    """Return the document of `baseline --json`; `measured_by` is "process" or "server"."""
    engine = manifest.recipe.engine
    samples = zip(prompts, measured.new_tokens, zip(*measured.seconds, strict=True), strict=True)
    return {
        "format_version": 1,
        "kind": "baseline",
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "name": manifest.recipe.name,
        "manifest": manifest_sha256(root),
        "target": describe_target(manifest),
        "engine": {"backend": engine.backend, "version": engine.version, "measured_by": measured_by},
        "machine": describe_machine(),
        "versions": {**manifest.tools, "trtspec": __version__},
        "prompts": {"count": len(prompts), "sha256": prompts_sha256(prompt.text for prompt in prompts)},
        "max_tokens": max_tokens,
        "runs": len(measured.seconds),
        **measured.as_dict(),
        "samples": [
            {"prompt": prompt.name, "new_tokens": tokens, "seconds": [round(each, 6) for each in seconds]}
            for prompt, tokens, seconds in samples
        ],
    }


def _percentiles(values: Sequence[float]) -> dict[str, float]:
    import numpy as np

    if not values:
        return {}
    p50, p95 = np.percentile(values, (50, 95))
    return {"mean": round(statistics.fmean(values), 6), "p50": round(float(p50), 6), "p95": round(float(p95), 6)}
