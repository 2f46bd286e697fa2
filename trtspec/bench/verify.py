# SPDX-License-Identifier: Apache-2.0
"""Verification of an artifact's output against its target, evaluation of its gates, and their check before deployment.

If the engine runs unconverted checkpoints in another process, `verify_artifact` checks only the files and their
sources. Parity and gates are then skipped; `trtspec bench NAME --gates` evaluates the gates on the server.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from trtspec.backends.base import find_backend
from trtspec.backends.code_policy import disallowed_code
from trtspec.bench.artifact import TARGET, artifact_prompts, open_artifact, read_artifact
from trtspec.bench.bench import OnProgress, can_disable_drafts, measure_drafts, measure_engine, measure_server
from trtspec.bench.documents import read_verification, store_verification, trusted_report
from trtspec.bench.gates import (
    FILES,
    MAX_RUNS,
    NEEDS_BASELINE,
    NEEDS_SERVER,
    NOT_REPORTED,
    ON_REQUEST,
    PROCESS,
    SERVER,
    UNDECIDED,
    GateResults,
    SkippedCheck,
    VerificationCheck,
    VerificationReport,
    active_gates,
    evaluate_gates,
    gates_skipped_on_request,
    needs_more_runs,
    skipped_on_request,
    undecided_policy,
)
from trtspec.bench.parity import check_parity
from trtspec.bench.sources import OTHER_PROMPTS, check_sources, find_source, overlap
from trtspec.bench.speedup import BenchComparison
from trtspec.checkpoints.trtllm import load_checkpoint
from trtspec.core.errors import DeployError, TrtspecError
from trtspec.engine.simulated_acceptance import SIMULATED, mean_accepted_len
from trtspec.serving.triton.client import Client
from trtspec.store.artifact import SIMULATED as NOT_ITS_TEXTS
from trtspec.store.artifact import Manifest, load_manifest, manifest_sha256, verify_files
from trtspec.store.artifact_cache import verify_changed
from trtspec.store.artifact_paths import CHECKPOINTS

log = logging.getLogger(__name__)

OnMeasure = Callable[[tuple[str, ...], bool], None]  # (gates, True if this process measures them)
OnSkipped = Callable[[Sequence[SkippedCheck]], None]

# Numbers of prompts and tokens for measuring an unverified artifact before its deployment.
DEPLOY_PROMPTS, DEPLOY_TOKENS = 16, 32
# Time estimate of that measurement: seconds per token of a tiny model on a CPU, and bytes of weights per second.
TOKEN_S, WEIGHTS_PER_S = 0.04, 8e9
ON_SERVER = (
    "measured on the server: trtspec bench NAME --gates (exit code 110 if texts differ, 112 if a limit is missed)"
)
NO_PARITY = "the engine runs the source unconverted in a separate process, so parity cannot be measured"


def verify_artifact(
    root: Path,
    *,
    source: Path | None = None,
    prompts_file: Path | None = None,
    max_tokens: int = 64,
    max_runs: int = MAX_RUNS,
    skip: Collection[str] = (),
    report: Path | None = None,
    reread: bool = False,
    expected: str = "",
    on_progress: OnProgress = lambda what, done, total: None,
    on_unwritten: Callable[[TrtspecError], None] = lambda error: None,
) -> VerificationReport:
    """Check files, parity with the source model, losslessness and gates; save the result and write the report.

    If files are damaged, the other checks are skipped, as for an artifact with simulated acceptance, which fails the
    check `simulated`. `source` is the directory of the target's Hugging Face
    checkpoint; the default is the one it was built from. `max_runs` limits the runs for a speed-up near its limit.
    `skip` names gates to skip. `report` is another path for the report. `reread` hashes files again even if they are
    unchanged. `expected` is the required SHA-256 of the manifest. `on_unwritten` is called with the error if the result
    cannot be saved. Raises TrtspecError if the source is not found.
    """
    manifest = load_manifest(root, expected)
    files, backend = _check_files(root, manifest, reread=reread), find_backend(manifest.backend.name)
    if manifest.simulated_acceptance:
        found = GateResults((_simulated(manifest),), ())
    elif not files.ok:
        found = GateResults((), ())
    elif backend.converts:
        found = _examine(root, manifest, source, prompts_file, max_tokens, max_runs, skip, on_progress)
    else:
        found = _examine_copies(root, manifest, source, skip)
    left_out = (*gates_skipped_on_request(manifest.recipe, skip), *found.left_out)
    checks, acceptance = (files, *found.checks), manifest.recipe.speculation.acceptance
    verification = VerificationReport(
        checks, acceptance, manifest_sha256(root), left_out, found.speedup, found.warnings
    ).under(undecided_policy())
    # add earlier results from the artifact's server
    whole = verification if backend.in_process else verification.after(read_verification(root))
    store_verification(root, whole, on_unwritten, report)
    return verification


def _check_files(root: Path, manifest: Manifest, *, reread: bool) -> VerificationCheck:
    started = time.perf_counter()
    differing, known = (verify_files(root, manifest), 0) if reread else verify_changed(root, manifest)
    problems, count = [*differing, *disallowed_code(root, manifest)], len(manifest.files)
    unchanged = f", {known} of them unchanged since the last check" if known else ""
    detail = "; ".join(problems[:3]) or f"{count} files match their recorded digests{unchanged}"
    seconds = time.perf_counter() - started
    return VerificationCheck(FILES, not problems, max(0, count - len(problems)), count, detail, seconds=seconds)


def _simulated(manifest: Manifest) -> VerificationCheck:
    """Return the failed check of an artifact that accepts drafts by simulation."""
    return VerificationCheck(SIMULATED, False, mean_accepted_len(manifest.simulated_acceptance), None, NOT_ITS_TEXTS)


def _examine(
    root: Path,
    manifest: Manifest,
    given: Path | None,
    prompts_file: Path | None,
    max_tokens: int,
    max_runs: int,
    skipped: Collection[str],
    on_progress: OnProgress,
) -> GateResults:
    """Compare the converted target in the torch engine with its source, and evaluate the gates.

    The speed-up is reported only if the torch engine also serves the artifact.
    """
    prompts, skip, early = artifact_prompts(root, prompts_file), {*skipped}, []
    source, checks = None, []
    if load_checkpoint(root / TARGET).quantization.algo and "quantized_parity" in skip:
        early = [skipped_on_request("parity")]
    else:
        source = find_source(root, manifest, given)
    in_process = find_backend(manifest.backend.name).in_process
    if not in_process and "min_speedup" in active_gates(manifest.recipe, skip):
        skip, early = {*skip, "min_speedup"}, [*early, SkippedCheck("min_speedup", NEEDS_SERVER, ON_SERVER)]
    with open_artifact(root, manifest) as artifact:
        texts, again = [prompt.text for prompt in prompts], needs_more_runs(manifest.recipe, skip, max_runs)
        comparison, results = measure_engine(artifact, texts, max_tokens, 1, on_progress, again)
        if source:
            started = time.perf_counter()
            parity = check_parity(artifact, source, prompts, results, on_progress)
            checks = [replace(parity, seconds=time.perf_counter() - started)]
    shared = overlap(root, texts, manifest)
    judged = evaluate_gates(manifest.recipe, comparison, PROCESS, skip, shared)
    return GateResults(
        (*checks, *judged.checks),
        (*early, *judged.left_out),
        judged.speedup if in_process else None,
        (f"{shared}: {OTHER_PROMPTS}",) if shared else (),
    )


def _examine_copies(root: Path, manifest: Manifest, given: Path | None, skip: Collection[str]) -> GateResults:
    """Run the checks that are possible for unconverted checkpoints of an engine in another process."""
    copies = check_sources(root, manifest, given)
    waiting = [SkippedCheck("parity", NOT_REPORTED, NO_PARITY)]
    waiting += [SkippedCheck(name, NEEDS_SERVER, ON_SERVER) for name in active_gates(manifest.recipe, skip)]
    if isinstance(copies, SkippedCheck):
        return GateResults((), (copies, *waiting))
    return GateResults((copies,), tuple(waiting))


@dataclass(frozen=True)
class GateWorkload:
    """Workload for measuring gates: prompts to run sequentially, and gates to skip."""

    prompts: Sequence[str]
    max_tokens: int
    runs: int  # minimum runs; up to MAX_RUNS while the interval of the speed-up includes its limit
    skip: Collection[str] = ()
    on_progress: OnProgress = lambda what, done, total: None


def deploy_load(root: Path, skip: Collection[str], on_progress: OnProgress) -> GateWorkload:
    """Return the small workload for gates of an artifact that is deployed without a verification."""
    prompts = [prompt.text for prompt in artifact_prompts(root, None)[:DEPLOY_PROMPTS]]
    return GateWorkload(prompts, DEPLOY_TOKENS, 1, skip, on_progress)


def deploy_estimate_s(root: Path, manifest: Manifest) -> float:
    """Return the estimated seconds of `deploy_load` in this process with one run of each side."""
    tokens = 2 * DEPLOY_TOKENS * len(artifact_prompts(root, None)[:DEPLOY_PROMPTS])
    weights = sum(record.size for record in manifest.files if record.path.startswith(f"{CHECKPOINTS}/"))
    return tokens * (TOKEN_S + weights / WEIGHTS_PER_S)


def measure_in_process(root: Path, manifest: Manifest, load: GateWorkload) -> BenchComparison:
    """Measure the gates in this process; raises TrtspecError if the artifact's engine runs in a server."""
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
    """Measure the gates on a running server; `baseline` is a server without speculation.

    Raises DeployError if a baseline is required but missing. With `in_part`, only drafts are counted in that case.
    """
    speculation = manifest.recipe.speculation
    if baseline or can_disable_drafts(client):
        again = needs_more_runs(manifest.recipe, load.skip, MAX_RUNS)
        return measure_server(
            client, load.prompts, load.max_tokens, load.runs, load.on_progress, speculation.acceptance, baseline, again
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
    """Evaluate an artifact's gates on `server`, or in this process without one, and save the result.

    `served_manifest` is the SHA-256 of the deployed manifest. Raises DeployError if the artifact was rebuilt since
    then.
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
    judged = evaluate_gates(manifest.recipe, comparison, measured_by, load.skip, shared)
    left_out = (*gates_skipped_on_request(manifest.recipe, load.skip), *judged.left_out)
    sha256 = manifest_sha256(root)
    found = VerificationReport(judged.checks, comparison.acceptance, sha256, left_out, judged.speedup)
    found = found.under(undecided_policy())
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
    """Raise unless an artifact's gates hold, by this user's saved verification or by measuring them now.

    `trusted` is the SHA-256 of the report in the artifact, if that report should be used instead. `expected` is the
    required SHA-256 of the manifest. `on_undecided` is called with undecided gates that pass by the policy
    (`undecided_policy`), and `on_measure` before gates are measured, in this process or on the server.

    Returns False if the gates can only be measured on the artifact's server, else True. Does not need the source model.
    Raises DigestMismatch, VerificationFailed or GateNotMet.
    """
    manifest = read_artifact(root, expected)
    report = trusted_report(root, trusted) if trusted else read_verification(root)
    in_process = find_backend(manifest.backend.name).in_process
    if report and (undecided := ensure_checks(report.without(skip))):
        on_undecided(undecided)
    if _settled(manifest, report, in_process, skip):
        return True
    what_follows = "measuring them now" if in_process else "its server will measure them"
    log.info("%s: no saved result covers its gates; %s", root, what_follows)
    on_measure(active_gates(manifest.recipe, skip), in_process)
    if in_process:
        comparison = measure_in_process(root, manifest, deploy_load(root, skip, on_progress))
        judged = evaluate_gates(manifest.recipe, comparison, PROCESS, skip)
        found = VerificationReport(judged.checks, comparison.acceptance, manifest_sha256(root))
        if undecided := ensure_checks(found):
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
    report = VerificationReport(judged.checks, comparison.acceptance, manifest_sha256(root))
    return (*judged.left_out, *ensure_checks(report, undecided))


def ensure_checks(report: VerificationReport, policy: str = "") -> list[SkippedCheck]:
    """Raise the report's failure, if any; return the undecided checks that pass by the policy."""
    judged = report.under(policy or undecided_policy())
    if failure := judged.failure:
        raise failure
    accepted = "undecided, accepted by policy: "
    return [SkippedCheck(check.name, UNDECIDED, f"{accepted}{check.detail}") for check in judged.undecided]


def _settled(manifest: Manifest, report: VerificationReport | None, in_process: bool, skip: Collection[str]) -> bool:
    """Return True if a report without failures covers the gates.

    For an engine that does not run in this process, the results must be from its server.
    """
    wanted = frozenset(active_gates(manifest.recipe, skip))
    if not wanted or (not in_process and manifest.recipe.speculation.method == "none"):
        return True
    if report is None:
        return False
    if in_process:
        return not any(each.name in wanted and each.reason == ON_REQUEST for each in report.left_out)
    measured = {check.name for check in report.checks if check.measured_by == SERVER}
    return wanted <= measured | {each.name for each in report.left_out if each.reason == NOT_REPORTED}
