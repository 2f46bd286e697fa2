# SPDX-License-Identifier: Apache-2.0
"""Measure the target alone, one request at a time, as a baseline for later comparisons.

The document identifies the target, the prompts and the machine.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from trtspec.bench.artifact import OpenArtifact
from trtspec.bench.bench import can_disable_drafts
from trtspec.bench.machine import describe_machine
from trtspec.bench.saved_documents import prompts_sha256
from trtspec.bench.target_fingerprint import describe_target
from trtspec.core.errors import DeployError
from trtspec.core.version import __version__
from trtspec.engine.prompts.prompt import Prompt
from trtspec.serving.triton.client import Client
from trtspec.store.manifest import Manifest, manifest_sha256

FORMAT_VERSION, KIND = 1, "baseline"
ALONE = {"num_draft_tokens": 0}
DRAFTS_ALWAYS = "build and deploy it with --set speculation.method=none, and give that deployment's name"
OnProgress = Callable[[str, int, int], None]
Ask = Callable[[str], int]  # (prompt) to the number of generated tokens


@dataclass(frozen=True)
class BaselineMeasurements:
    """Seconds by run and prompt, [run][prompt], and the number of tokens in each response."""

    seconds: list[list[float]]
    new_tokens: list[int]

    @property
    def tokens_per_s(self) -> list[float]:
        """Return the tokens per second of each run."""
        return [sum(self.new_tokens) / sum(run) for run in self.seconds]

    def as_dict(self) -> dict[str, Any]:
        """Return the fields of the JSON document."""
        requests = [seconds for run in self.seconds for seconds in run]
        answers = [pair for run in self.seconds for pair in zip(run, self.new_tokens, strict=True)]
        return {
            "new_tokens": sum(self.new_tokens),
            "tokens_per_s": [round(each, 2) for each in self.tokens_per_s],
            "median_tokens_per_s": round(statistics.median(self.tokens_per_s), 2),
            "request_s": _percentiles(requests),
            "ms_per_token": _percentiles([seconds / tokens * 1e3 for seconds, tokens in answers if tokens]),
        }


def measure(ask: Ask, prompts: Sequence[Prompt], runs: int, on_progress: OnProgress) -> BaselineMeasurements:
    """Send every prompt sequentially in each run, after one warm-up request."""
    ask(prompts[0].text)
    seconds: list[list[float]] = []
    tokens: list[int] = []
    for run in range(runs):
        seconds.append([])
        for number, prompt in enumerate(prompts, 1):
            started = time.perf_counter()
            new = ask(prompt.text)
            seconds[-1].append(time.perf_counter() - started)
            if run == 0:
                tokens.append(new)
            on_progress(f"run {run + 1} of {runs}", number, len(prompts))
    return BaselineMeasurements(seconds, tokens)


def ask_engine(artifact: OpenArtifact, max_tokens: int) -> Ask:
    """Return a function that generates without drafts on an artifact's engine in this process."""

    def ask(prompt: str) -> int:
        request = artifact.request(prompt, max_tokens, draft_len=0)
        return artifact.engine.generate([request])[0].stats.new_tokens

    return ask


def ask_server(client: Client, manifest: Manifest, max_tokens: int) -> Ask:
    """Return a function that generates without drafts on an artifact's server.

    Raises DeployError if the server cannot switch drafting off.
    """
    drafts = manifest.recipe.speculation.method != "none"
    if drafts and not can_disable_drafts(client):
        raise DeployError("the engine cannot switch drafting off", where=client.where, hint=DRAFTS_ALWAYS)

    def ask(prompt: str) -> int:
        answer = client.generate({"text_input": prompt, "max_tokens": max_tokens, **(ALONE if drafts else {})})
        new = answer.get("num_output_tokens")
        if not isinstance(new, int):
            raise DeployError(
                "the server's responses lack num_output_tokens", hint="serve an artifact built by trtspec"
            )
        return new

    return ask


def describe(
    root: Path,
    manifest: Manifest,
    prompts: Sequence[Prompt],
    max_tokens: int,
    measured: BaselineMeasurements,
    measured_by: str,
) -> dict[str, Any]:
    """Return the JSON document; `measured_by` is "process" or "server"."""
    engine = manifest.recipe.engine
    samples = zip(prompts, measured.new_tokens, zip(*measured.seconds, strict=True), strict=True)
    return {
        "format_version": FORMAT_VERSION,
        "kind": KIND,
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
