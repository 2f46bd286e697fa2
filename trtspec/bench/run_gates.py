# SPDX-License-Identifier: Apache-2.0
"""Measure and evaluate gates, in this process or on a running server, and record the results."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from trtspec.backends.base import find_backend
from trtspec.bench.artifact import artifact_prompts, open_artifact, read_artifact
from trtspec.bench.bench import (
    DRAFTS_ALWAYS,
    BenchComparison,
    OnProgress,
    can_disable_drafts,
    measure_drafts,
    measure_engine,
    measure_server,
)
from trtspec.bench.gates import GateResults, evaluate_gates, gates_skipped_on_request, needs_more_runs
from trtspec.bench.sources import overlap
from trtspec.bench.speedup import MAX_RUNS, UNDECIDED
from trtspec.bench.verification_report import (
    PROCESS,
    REPORT,
    SERVER,
    SkippedCheck,
    VerificationCheck,
    VerificationReport,
    make_report,
    read_verification,
    save_verification,
    undecided_policy,
    write_report,
)
from trtspec.core.errors import DeployError, TrtspecError
from trtspec.serving.triton.client import Client
from trtspec.store.artifact import Manifest, load_manifest, manifest_sha256
from trtspec.store.artifact_paths import CHECKPOINTS

# Size of the measurement before an unverified artifact is deployed.
DEPLOY_PROMPTS, DEPLOY_TOKENS = 16, 32
# For estimating its time: seconds per token of a tiny model on a CPU, and bytes of weights read per second.
TOKEN_S, WEIGHTS_PER_S = 0.04, 8e9


@dataclass(frozen=True)
class GateWorkload:
    """The workload for gates: prompts to run sequentially, and the gates to skip.

    Each side runs `runs` times, and up to MAX_RUNS while the interval of the speed-up includes its limit.
    """

    prompts: Sequence[str]
    max_tokens: int
    runs: int
    skip: Collection[str] = ()
    on_progress: OnProgress = lambda what, done, total: None


def deploy_load(root: Path, skip: Collection[str], on_progress: OnProgress) -> GateWorkload:
    """Return the workload for an artifact without a report."""
    prompts = [prompt.text for prompt in artifact_prompts(root, None)[:DEPLOY_PROMPTS]]
    return GateWorkload(prompts, DEPLOY_TOKENS, 1, skip, on_progress)


def deploy_estimate_s(root: Path, manifest: Manifest) -> float:
    """Return the estimated seconds of `deploy_load` in this process with one run of each side."""
    tokens = 2 * DEPLOY_TOKENS * len(artifact_prompts(root, None)[:DEPLOY_PROMPTS])
    weights = sum(record.size for record in manifest.files if record.path.startswith(f"{CHECKPOINTS}/"))
    return tokens * (TOKEN_S + weights / WEIGHTS_PER_S)


def evaluate_engine(root: Path, manifest: Manifest, load: GateWorkload) -> tuple[BenchComparison, GateResults]:
    """Evaluate the gates in this process; raise TrtspecError if the artifact needs another engine."""
    name = manifest.backend.name
    if not find_backend(name).in_process:
        hint = "deploy it with trtspec deploy, then run trtspec bench NAME --gates"
        raise TrtspecError(f"{name} runs in a server; benchmark the deployment", where=str(root), hint=hint)
    again = needs_more_runs(manifest.recipe, load.skip, MAX_RUNS)
    with open_artifact(root, manifest) as artifact:
        comparison, _ = measure_engine(artifact, load.prompts, load.max_tokens, load.runs, load.on_progress, again)
    return comparison, evaluate_gates(manifest.recipe, comparison, PROCESS, load.skip)


def evaluate_server(
    client: Client, manifest: Manifest, load: GateWorkload, baseline: Client | None = None, *, in_part: bool = False
) -> tuple[BenchComparison, GateResults]:
    """Evaluate the gates on a running server; `baseline` is a server without speculation.

    Raises DeployError if a baseline is needed but missing. With `in_part`, measures what does not need one instead.
    """
    acceptance, prompts = manifest.recipe.speculation.acceptance, load.prompts
    if baseline or can_disable_drafts(client):
        again = needs_more_runs(manifest.recipe, load.skip, MAX_RUNS)
        comparison = measure_server(
            client, prompts, load.max_tokens, load.runs, load.on_progress, acceptance, baseline, again
        )
    elif in_part:
        comparison = measure_drafts(client, prompts, load.max_tokens, load.on_progress, acceptance)
    elif manifest.recipe.speculation.method == "none":
        raise DeployError("the artifact does not speculate, so its gates cannot be measured")
    else:
        raise DeployError("the gates need a baseline", hint=DRAFTS_ALWAYS)
    return comparison, evaluate_gates(manifest.recipe, comparison, SERVER, load.skip)


def ensure_served_gates(
    client: Client, root: Path, load: GateWorkload, baseline: Client | None = None, undecided: str = ""
) -> tuple[SkippedCheck, ...]:
    """Raise if a gate fails on the artifact's server; return the gates that were not measured or are undecided.

    `needs_more_runs` is the policy for undecided gates, "fail" or "pass"; the default comes from the environment.
    """
    manifest = load_manifest(root)
    _, judged = evaluate_server(client, manifest, load, baseline, in_part=True)
    found = make_report(root, manifest.recipe.speculation.acceptance, judged.checks)
    found = found.under(undecided or undecided_policy())
    if failure := found.failure:
        raise failure
    return (*judged.left_out, *map(skipped_as_undecided, found.undecided))


def skipped_as_undecided(check: VerificationCheck) -> SkippedCheck:
    """Return the skip record of an undecided check."""
    return SkippedCheck(check.name, UNDECIDED, f"undecided, accepted by policy: {check.detail}")


def bench_gates(
    root: Path,
    load: GateWorkload,
    server: Client | None,
    served_manifest: str = "",
    baseline: Client | None = None,
    on_unwritten: Callable[[TrtspecError], None] = lambda error: None,
) -> tuple[BenchComparison, VerificationReport]:
    """Evaluate an artifact's gates on `server`, or in this process without one, and save the report.

    `served_manifest` is the SHA-256 of the deployed manifest. Raises DeployError if the artifact was rebuilt since.
    """
    manifest = read_artifact(root)
    if server and served_manifest not in ("", manifest_sha256(root)):
        message = "the artifact was rebuilt after it was deployed"
        raise DeployError(message, where=str(root), hint="stop the deployment and deploy it again")
    comparison, judged = (
        evaluate_server(server, manifest, load, baseline) if server else evaluate_engine(root, manifest, load)
    )
    judged = judged.noting(overlap(root, load.prompts, manifest))
    left_out = (*gates_skipped_on_request(manifest.recipe, load.skip), *judged.left_out)
    found = make_report(root, comparison.acceptance, judged.checks, left_out, judged.speedup)
    found = found.under(undecided_policy())
    whole = found.after(read_verification(root))
    for keep in (save_verification, _write_copy):
        try:
            keep(root, whole)
        except TrtspecError as error:
            on_unwritten(error)
    return comparison, found


def _write_copy(root: Path, found: VerificationReport) -> None:
    write_report(root / REPORT, found, follow=False)
