# SPDX-License-Identifier: Apache-2.0
"""Verify an artifact's output against its target and evaluate its gates.

For an engine that runs unconverted checkpoints in another process, only the files and their sources are checked. Parity
and gates are reported as left to the server (`trtspec bench NAME --gates`).
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
from trtspec.bench.bench import measure_engine
from trtspec.bench.gates import (
    GateResults,
    active_gates,
    evaluate_gates,
    gates_skipped_on_request,
    needs_more_runs,
    skipped_on_request,
)
from trtspec.bench.parity import check_parity
from trtspec.bench.run_gates import deploy_load, evaluate_engine, skipped_as_undecided
from trtspec.bench.sources import check_sources, find_source, overlap
from trtspec.bench.speedup import MAX_RUNS
from trtspec.bench.verification_report import (
    FILES,
    NEEDS_SERVER,
    NOT_REPORTED,
    ON_REQUEST,
    PROCESS,
    REPORT,
    SERVER,
    SkippedCheck,
    VerificationCheck,
    VerificationReport,
    make_report,
    read_verification,
    save_verification,
    trusted_report,
    undecided_policy,
    write_report,
)
from trtspec.checkpoints.trtllm import load_checkpoint
from trtspec.core.errors import TrtspecError
from trtspec.store.artifact import Manifest, load_manifest, verify_files
from trtspec.store.artifact_cache import verify_changed

log = logging.getLogger(__name__)

ON_SERVER = (
    "measured on the server: trtspec bench NAME --gates (exit code 110 if texts differ, 112 if a limit is missed)"
)
NO_PARITY = "the engine runs the source unconverted in a separate process, so parity cannot be measured"

OnProgress = Callable[[str, int, int], None]


OnMeasure = Callable[[tuple[str, ...], bool], None]  # (gates, whether this process measures them)


@dataclass(frozen=True)
class _Options:
    """The options of a verification."""

    source: Path | None
    prompts_file: Path | None
    max_tokens: int
    max_runs: int
    skip: Collection[str]
    on_progress: OnProgress


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

    If files are damaged, the other checks are skipped. `source` is the directory of the target's Hugging Face
    checkpoint, by default the one it was built from. `max_runs` limits the runs for a speed-up near its limit. `skip`
    names gates to skip. `report` is an alternative path for the report. `reread` hashes files again even if they are
    unchanged. `expected` is the SHA-256 that the manifest must have. `on_unwritten` receives the error if the artifact
    or the state directory is not writable. Raises TrtspecError if the source is not found.
    """
    manifest = load_manifest(root, expected)
    files, found = _check_files(root, manifest, reread=reread), GateResults((), ())
    if files.ok:
        examine = _examine if find_backend(manifest.backend.name).converts else _examine_copies
        found = examine(root, manifest, _Options(source, prompts_file, max_tokens, max_runs, skip, on_progress))
    left_out = (*gates_skipped_on_request(manifest.recipe, skip), *found.left_out)
    acceptance = manifest.recipe.speculation.acceptance
    verification = make_report(root, acceptance, (files, *found.checks), left_out, found.speedup)
    warnings = (found.overlap.warning,) if found.overlap else ()
    verification = replace(verification, warnings=warnings).under(undecided_policy())
    _save(root, manifest, verification, report, on_unwritten)
    return verification


def ensure_gates(
    root: Path,
    on_progress: OnProgress = lambda what, done, total: None,
    skip: Collection[str] = (),
    on_undecided: Callable[[Sequence[SkippedCheck]], None] = lambda those: None,
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
    if report:
        _ensure(report.without(skip), on_undecided)
    if _settled(manifest, report, in_process, skip):
        return True
    log.info(
        "%s: no saved result covers its gates; %s",
        root,
        "measuring them now" if in_process else "its server will measure them",
    )
    on_measure(active_gates(manifest.recipe, skip), in_process)
    if in_process:
        _, judged = evaluate_engine(root, manifest, deploy_load(root, skip, on_progress))
        _ensure(make_report(root, manifest.recipe.speculation.acceptance, judged.checks), on_undecided)
    return in_process


def _ensure(found: VerificationReport, on_undecided: Callable[[Sequence[SkippedCheck]], None]) -> None:
    """Raise if a check fails, including undecided ones if the policy is "fail"."""
    judged = found.under(undecided_policy())
    if failure := judged.failure:
        raise failure
    if judged.undecided:
        on_undecided([skipped_as_undecided(check) for check in judged.undecided])


def _settled(manifest: Manifest, report: VerificationReport | None, in_process: bool, skip: Collection[str]) -> bool:
    """Return whether a report without failures covers the gates; other engines need results from their server."""
    wanted = frozenset(active_gates(manifest.recipe, skip))
    if not wanted or (not in_process and manifest.recipe.speculation.method == "none"):
        return True
    if report is None:
        return False
    if in_process:
        return not any(each.name in wanted and each.reason == ON_REQUEST for each in report.left_out)
    told = {check.name for check in report.checks if check.measured_by == SERVER}
    return wanted <= told | {each.name for each in report.left_out if each.reason == NOT_REPORTED}


def _check_files(root: Path, manifest: Manifest, *, reread: bool) -> VerificationCheck:
    started = time.perf_counter()
    differing, known = (verify_files(root, manifest), 0) if reread else verify_changed(root, manifest)
    problems, count = [*differing, *disallowed_code(root, manifest)], len(manifest.files)
    unchanged = f", {known} of them unchanged since the last check" if known else ""
    detail = "; ".join(problems[:3]) or f"{count} files match their recorded digests{unchanged}"
    seconds = time.perf_counter() - started
    return VerificationCheck(FILES, not problems, max(0, count - len(problems)), count, detail, seconds=seconds)


def _examine(root: Path, manifest: Manifest, asked: _Options) -> GateResults:
    """Compare the converted target in the torch engine with its source, and evaluate the gates.

    The speed-up is reported only if the torch engine also serves the artifact.
    """
    prompts, skip, early = artifact_prompts(root, asked.prompts_file), {*asked.skip}, []
    source, checks = None, []
    if load_checkpoint(root / TARGET).quantization.algo and "quantized_parity" in skip:
        early = [skipped_on_request("parity")]
    else:
        source = find_source(root, manifest, asked.source)
    in_process = find_backend(manifest.backend.name).in_process
    if not in_process and "min_speedup" in active_gates(manifest.recipe, skip):
        skip, early = {*skip, "min_speedup"}, [*early, SkippedCheck("min_speedup", NEEDS_SERVER, ON_SERVER)]
    with open_artifact(root, manifest) as artifact:
        texts, again = [prompt.text for prompt in prompts], needs_more_runs(manifest.recipe, skip, asked.max_runs)
        comparison, results = measure_engine(artifact, texts, asked.max_tokens, 1, asked.on_progress, again)
        if source:
            started = time.perf_counter()
            parity = check_parity(artifact, source, prompts, results, asked.on_progress)
            checks = [replace(parity, seconds=time.perf_counter() - started)]
    judged = evaluate_gates(manifest.recipe, comparison, PROCESS, skip).noting(overlap(root, texts, manifest))
    speedup = judged.speedup if in_process else None
    return GateResults((*checks, *judged.checks), (*early, *judged.left_out), speedup, judged.overlap)


def _examine_copies(root: Path, manifest: Manifest, asked: _Options) -> GateResults:
    """Run the checks that are possible for unconverted checkpoints of an engine in another process."""
    copies = check_sources(root, manifest, asked.source)
    names = active_gates(manifest.recipe, asked.skip)
    waiting = (
        SkippedCheck("parity", NOT_REPORTED, NO_PARITY),
        *(SkippedCheck(name, NEEDS_SERVER, ON_SERVER) for name in names),
    )
    return (
        GateResults((copies,), waiting)
        if isinstance(copies, VerificationCheck)
        else GateResults((), (copies, *waiting))
    )


def _save(
    root: Path,
    manifest: Manifest,
    found: VerificationReport,
    report: Path | None,
    on_unwritten: Callable[[TrtspecError], None],
) -> None:
    """Save the result and write the report, including server results if the engine runs in another process."""
    if not find_backend(manifest.backend.name).in_process:
        found = found.after(read_verification(root))
    try:
        save_verification(root, found)
    except TrtspecError as error:
        on_unwritten(error)
    if report:
        return write_report(report, found)
    try:
        write_report(root / REPORT, found, follow=False)
    except TrtspecError as error:
        on_unwritten(error)
