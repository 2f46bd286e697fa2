# SPDX-License-Identifier: Apache-2.0
"""Measures what the gates are about, in this process or on a running server, and notes it in the report."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from trtspec.backends.base import find_backend
from trtspec.bench.artifact import artifact_prompts, open_artifact, read_artifact
from trtspec.bench.bench import (
    DRAFTS_ALWAYS,
    Comparison,
    OnProgress,
    drafts_on_request,
    measure_drafts,
    measure_engine,
    measure_server,
)
from trtspec.bench.gates import Judgement, judge_gates, left_out_on_request, undecided
from trtspec.bench.overlap import overlap
from trtspec.bench.speedup import MAX_RUNS, UNDECIDED
from trtspec.bench.verification_report import (
    PROCESS,
    REPORT,
    SERVER,
    Check,
    LeftOut,
    Verification,
    keep_verification,
    read_verification,
    undecided_policy,
    verification_of,
    write_report,
)
from trtspec.core.errors import DeployError, TrtspecError
from trtspec.serving.triton.client import Client
from trtspec.store.artifact_paths import CHECKPOINTS
from trtspec.store.manifest import Manifest, load_manifest, manifest_sha256

# What is measured before an unverified artifact is deployed.
DEPLOY_PROMPTS, DEPLOY_TOKENS = 16, 32
# For an estimate of its time: of a token of a tiny model on a CPU, and how fast weights are read for each token.
TOKEN_S, WEIGHTS_PER_S = 0.04, 8e9


@dataclass(frozen=True)
class Load:
    """What is asked, one prompt after the other, and which gates are of no interest.

    There are `runs` runs of each side, and up to MAX_RUNS while it is not sure that the speed-up reaches its limit.
    """

    prompts: Sequence[str]
    max_tokens: int
    runs: int
    skip: Collection[str] = ()
    on_progress: OnProgress = lambda what, done, total: None


def deploy_load(root: Path, skip: Collection[str], on_progress: OnProgress) -> Load:
    """Return what is asked of an artifact without a report."""
    prompts = [prompt.text for prompt in artifact_prompts(root, None)[:DEPLOY_PROMPTS]]
    return Load(prompts, DEPLOY_TOKENS, 1, skip, on_progress)


def deploy_estimate_s(root: Path, manifest: Manifest) -> float:
    """Return about how many seconds `deploy_load` takes in this process, where one run of each side is enough."""
    tokens = 2 * DEPLOY_TOKENS * len(artifact_prompts(root, None)[:DEPLOY_PROMPTS])
    weights = sum(record.size for record in manifest.files if record.path.startswith(f"{CHECKPOINTS}/"))
    return tokens * (TOKEN_S + weights / WEIGHTS_PER_S)


def judge_engine(root: Path, manifest: Manifest, load: Load) -> tuple[Comparison, Judgement]:
    """Judge the gates in this process; raises TrtspecError where another engine serves the artifact."""
    name = manifest.backend.name
    if not find_backend(name).in_process:
        hint = "trtspec deploy it, then trtspec bench NAME --gates"
        raise TrtspecError(f"{name} serves this artifact, and not this process", where=str(root), hint=hint)
    again = undecided(manifest.recipe, load.skip, MAX_RUNS)
    with open_artifact(root, manifest) as artifact:
        comparison, _ = measure_engine(artifact, load.prompts, load.max_tokens, load.runs, load.on_progress, again)
    return comparison, judge_gates(manifest.recipe, comparison, PROCESS, load.skip)


def judge_server(
    client: Client, manifest: Manifest, load: Load, baseline: Client | None = None, *, in_part: bool = False
) -> tuple[Comparison, Judgement]:
    """Judge the gates on a running server; `baseline` is one without speculation.

    Raises DeployError where one is needed and there is none, unless `in_part` asks for what can be measured without.
    """
    acceptance, prompts = manifest.recipe.speculation.acceptance, load.prompts
    if baseline or drafts_on_request(client):
        again = undecided(manifest.recipe, load.skip, MAX_RUNS)
        comparison = measure_server(
            client, prompts, load.max_tokens, load.runs, load.on_progress, acceptance, baseline, again
        )
    elif in_part:
        comparison = measure_drafts(client, prompts, load.max_tokens, load.on_progress, acceptance)
    elif manifest.recipe.speculation.method == "none":
        raise DeployError("the artifact does not speculate: its gates have nothing to compare")
    else:
        raise DeployError("the gates need a baseline", hint=DRAFTS_ALWAYS)
    return comparison, judge_gates(manifest.recipe, comparison, SERVER, load.skip)


def ensure_served_gates(
    client: Client, root: Path, load: Load, baseline: Client | None = None, undecided: str = ""
) -> tuple[LeftOut, ...]:
    """Raise unless the gates hold on an artifact's own server; returns what was not or could not be decided there.

    `undecided` is the policy for undecided gates, "fail" or "pass", by default that of the environment.
    """
    manifest = load_manifest(root)
    _, judged = judge_server(client, manifest, load, baseline, in_part=True)
    found = verification_of(root, manifest.recipe.speculation.acceptance, judged.checks)
    found = found.under(undecided or undecided_policy())
    if failure := found.failure:
        raise failure
    return (*judged.left_out, *map(left_undecided, found.undecided))


def left_undecided(check: Check) -> LeftOut:
    """Return an undecided check as one that was left out."""
    return LeftOut(check.name, UNDECIDED, f"undecided, and taken as it is: {check.detail}")


def bench_gates(
    root: Path,
    load: Load,
    server: Client | None,
    served_manifest: str = "",
    baseline: Client | None = None,
    on_unwritten: Callable[[TrtspecError], None] = lambda error: None,
) -> tuple[Comparison, Verification]:
    """Judge an artifact's gates on `server`, or without one in this process, and keep and write the report.

    `served_manifest` is the SHA-256 of the manifest that was deployed: of an artifact built anew since nothing is said.
    """
    manifest = read_artifact(root)
    if server and served_manifest not in ("", manifest_sha256(root)):
        message = "the artifact was built again since it was deployed"
        raise DeployError(message, where=str(root), hint="stop the deployment and deploy it again")
    comparison, judged = (
        judge_server(server, manifest, load, baseline) if server else judge_engine(root, manifest, load)
    )
    judged = judged.noting(overlap(root, load.prompts, manifest))
    left_out = (*left_out_on_request(manifest.recipe, load.skip), *judged.left_out)
    found = verification_of(root, comparison.acceptance, judged.checks, left_out, judged.speedup)
    found = found.under(undecided_policy())
    whole = found.after(read_verification(root))
    for keep in (keep_verification, _write_copy):
        try:
            keep(root, whole)
        except TrtspecError as error:
            on_unwritten(error)
    return comparison, found


def _write_copy(root: Path, found: Verification) -> None:
    write_report(root / REPORT, found, follow=False)
