# SPDX-License-Identifier: Apache-2.0
"""Run the gates of an artifact: measure them in this process or on a server, and ensure them before a deployment."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from trtspec.backends.base import find_backend
from trtspec.bench.artifact import artifact_prompts, open_artifact, read_artifact
from trtspec.bench.bench import OnProgress, can_disable_drafts, measure_drafts, measure_engine, measure_server
from trtspec.bench.gates import (
    MAX_RUNS,
    NEEDS_BASELINE,
    NOT_REPORTED,
    ON_REQUEST,
    PROCESS,
    SERVER,
    SkippedCheck,
    VerificationReport,
    active_gates,
    evaluate_gates,
    gates_skipped_on_request,
    needs_more_runs,
    skipped_as_undecided,
    undecided_policy,
)
from trtspec.bench.sources import overlap
from trtspec.bench.speedup import BenchComparison
from trtspec.bench.verification_report import make_report, read_verification, store_verification, trusted_report
from trtspec.core.errors import DeployError, TrtspecError
from trtspec.serving.triton.client import Client
from trtspec.store.artifact import Manifest, load_manifest, manifest_sha256
from trtspec.store.artifact_paths import CHECKPOINTS

log = logging.getLogger(__name__)

OnMeasure = Callable[[tuple[str, ...], bool], None]  # (gates, whether this process measures them)
OnSkipped = Callable[[Sequence[SkippedCheck]], None]

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


def measure_in_process(root: Path, manifest: Manifest, load: GateWorkload) -> BenchComparison:
    """Measure for the gates in this process; raise TrtspecError if the artifact needs another engine."""
    name = manifest.backend.name
    if not find_backend(name).in_process:
        hint = "deploy it with trtspec deploy, then run trtspec bench NAME --gates"
        raise TrtspecError(f"{name} runs in a server; benchmark the deployment", where=str(root), hint=hint)
    again = needs_more_runs(manifest.recipe, load.skip, MAX_RUNS)
    with open_artifact(root, manifest) as artifact:
        return measure_engine(artifact, load.prompts, load.max_tokens, load.runs, load.on_progress, again)[0]


def measure_on_server(
    client: Client, manifest: Manifest, load: GateWorkload, baseline: Client | None = None, *, in_part: bool = False
) -> BenchComparison:
    """Measure for the gates on a running server; `baseline` is a server without speculation.

    Raises DeployError if a baseline is needed but missing. With `in_part`, measures what does not need one instead.
    """
    speculation = manifest.recipe.speculation
    if baseline or can_disable_drafts(client):
        again = needs_more_runs(manifest.recipe, load.skip, MAX_RUNS)
        return measure_server(
            client,
            load.prompts,
            load.max_tokens,
            load.runs,
            load.on_progress,
            acceptance=speculation.acceptance,
            baseline=baseline,
            again=again,
        )
    if in_part:
        return measure_drafts(client, load.prompts, load.max_tokens, load.on_progress, speculation.acceptance)
    if speculation.method == "none":
        raise DeployError("the artifact does not speculate, so its gates cannot be measured")
    raise DeployError("the gates need a baseline", hint=NEEDS_BASELINE)


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
    if server:
        comparison, measured_by = measure_on_server(server, manifest, load, baseline), SERVER
    else:
        comparison, measured_by = measure_in_process(root, manifest, load), PROCESS
    shared = overlap(root, load.prompts, manifest)
    judged = evaluate_gates(manifest.recipe, comparison, measured_by, load.skip, str(shared or ""))
    left_out = (*gates_skipped_on_request(manifest.recipe, load.skip), *judged.left_out)
    found = make_report(root, comparison.acceptance, judged.checks, left_out, judged.speedup).under(undecided_policy())
    store_verification(root, found.after(read_verification(root)), on_unwritten)
    return comparison, found


def ensure_gates(
    root: Path,
    on_progress: OnProgress = lambda what, done, total: None,
    skip: Collection[str] = (),
    on_undecided: OnSkipped = lambda those: None,
    on_measure: OnMeasure = lambda gates, in_process: None,
    *,
    expected: str = "",
    trusted: str = "",
) -> bool:
    """Raise unless the gates of an artifact hold, by this user's saved verification or by measuring them now.

    The report in the artifact is used only if `trusted` is its SHA-256. `expected` is the SHA-256 that the manifest
    must have.

    `on_undecided` receives the undecided gates that pass (`undecided_policy`). `on_measure` is called before gates are
    measured, here or on the server.

    Returns whether the gates are settled: an engine that does not run in this process can only be measured on its
    server. Raises DigestMismatch, VerificationFailed or GateNotMet. Does not need the source model.
    """
    manifest = read_artifact(root, expected)
    report = trusted_report(root, trusted) if trusted else read_verification(root)
    in_process = find_backend(manifest.backend.name).in_process
    if report and (undecided := ensure_checks(report.without(skip))):
        on_undecided(undecided)
    if _settled(manifest, report, in_process, skip):
        return True
    log.info(
        "%s: no saved result covers its gates; %s",
        root,
        "measuring them now" if in_process else "its server will measure them",
    )
    on_measure(active_gates(manifest.recipe, skip), in_process)
    if in_process:
        comparison = measure_in_process(root, manifest, deploy_load(root, skip, on_progress))
        judged = evaluate_gates(manifest.recipe, comparison, PROCESS, skip)
        if undecided := ensure_checks(make_report(root, comparison.acceptance, judged.checks)):
            on_undecided(undecided)
    return in_process


def ensure_served_gates(
    client: Client, root: Path, load: GateWorkload, baseline: Client | None = None, undecided: str = ""
) -> tuple[SkippedCheck, ...]:
    """Raise if a gate fails on the artifact's server; return the gates that were not measured or are undecided.

    `undecided` is the policy for undecided gates, "fail" or "pass"; the default comes from the environment.
    """
    manifest = load_manifest(root)
    comparison = measure_on_server(client, manifest, load, baseline, in_part=True)
    judged = evaluate_gates(manifest.recipe, comparison, SERVER, load.skip)
    report = make_report(root, comparison.acceptance, judged.checks)
    return (*judged.left_out, *ensure_checks(report, undecided))


def ensure_checks(report: VerificationReport, policy: str = "") -> list[SkippedCheck]:
    """Raise if a check fails, and return the undecided checks that pass by the policy."""
    judged = report.under(policy or undecided_policy())
    if failure := judged.failure:
        raise failure
    return [skipped_as_undecided(check) for check in judged.undecided]


def _settled(manifest: Manifest, report: VerificationReport | None, in_process: bool, skip: Collection[str]) -> bool:
    """Return whether a report without failures covers the gates; other engines need results from their server."""
    wanted = frozenset(active_gates(manifest.recipe, skip))
    if not wanted or (not in_process and manifest.recipe.speculation.method == "none"):
        return True
    if report is None:
        return False
    if in_process:
        return not any(each.name in wanted and each.reason == ON_REQUEST for each in report.left_out)
    measured = {check.name for check in report.checks if check.measured_by == SERVER}
    return wanted <= measured | {each.name for each in report.left_out if each.reason == NOT_REPORTED}
