# SPDX-License-Identifier: Apache-2.0
"""Verify an artifact's output against its target and evaluate its gates.

For an engine that runs unconverted checkpoints in another process, only the files and their sources are checked. Parity
and gates are reported as left to the server (`trtspec bench NAME --gates`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from pathlib import Path

from trtspec.backends.base import find_backend
from trtspec.backends.code_policy import disallowed_code
from trtspec.bench.artifact import TARGET, artifact_prompts, open_artifact
from trtspec.bench.bench import OnProgress, measure_engine
from trtspec.bench.gates import (
    FILES,
    MAX_RUNS,
    NEEDS_SERVER,
    NOT_REPORTED,
    PROCESS,
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
from trtspec.bench.sources import check_sources, find_source, overlap
from trtspec.bench.verification_report import make_report, read_verification, store_verification
from trtspec.checkpoints.trtllm import load_checkpoint
from trtspec.core.errors import TrtspecError
from trtspec.store.artifact import Manifest, load_manifest, verify_files
from trtspec.store.artifact_cache import verify_changed

ON_SERVER = (
    "measured on the server: trtspec bench NAME --gates (exit code 110 if texts differ, 112 if a limit is missed)"
)
NO_PARITY = "the engine runs the source unconverted in a separate process, so parity cannot be measured"


@dataclass(frozen=True)
class _Options:
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
    verification = replace(verification, warnings=found.warnings).under(undecided_policy())
    in_process = find_backend(manifest.backend.name).in_process
    whole = verification if in_process else verification.after(read_verification(root))  # with results from its server
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
    shared = overlap(root, texts, manifest)
    judged = evaluate_gates(manifest.recipe, comparison, PROCESS, skip, str(shared or ""))
    return GateResults(
        (*checks, *judged.checks),
        (*early, *judged.left_out),
        judged.speedup if in_process else None,
        (shared.warning,) if shared else (),
    )


def _examine_copies(root: Path, manifest: Manifest, asked: _Options) -> GateResults:
    """Run the checks that are possible for unconverted checkpoints of an engine in another process."""
    copies = check_sources(root, manifest, asked.source)
    waiting = [SkippedCheck("parity", NOT_REPORTED, NO_PARITY)]
    waiting += [SkippedCheck(name, NEEDS_SERVER, ON_SERVER) for name in active_gates(manifest.recipe, asked.skip)]
    if isinstance(copies, SkippedCheck):
        return GateResults((), (copies, *waiting))
    return GateResults((copies,), tuple(waiting))
