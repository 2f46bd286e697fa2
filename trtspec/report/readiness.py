# SPDX-License-Identifier: Apache-2.0
"""Production readiness of an artifact: items with a state, the evidence and the command that completes them.

docs/readiness.md documents the items. The evidence is from the manifest, the verification, saved documents, deployments
and Prometheus.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from trtspec.backends.base import find_backend
from trtspec.bench.artifact import artifact_prompts
from trtspec.bench.documents import (
    SavedDocument,
    list_documents,
    load_verification,
    mismatch_reason,
    prompts_sha256,
    read_document,
    read_untrusted_report,
    recorded_manifest,
    target_sha256,
)
from trtspec.bench.gates import UNDECIDED, VerificationReport, active_gates
from trtspec.core.errors import DeployError, TrtspecError
from trtspec.deployment.journal import DeploymentJournal, DeploymentRecord, deployment_names
from trtspec.deployment.rollout.commands import previous_revision
from trtspec.recipe.resolve import ResolvedRecipe, find_unsafe_overrides
from trtspec.report.evidence import ELSEWHERE
from trtspec.report.monitoring.configuration import rules
from trtspec.report.monitoring.prometheus import Prometheus
from trtspec.store.artifact import Manifest, load_manifest, manifest_sha256
from trtspec.store.artifact_paths import MANIFEST

DONE, MISSING, NOT_NEEDED = "done", "missing", "not needed"
DAY = "%Y-%m-%d"
SHORT = 12  # number of displayed digits of a digest
NOT_SPECULATING = "the recipe does not speculate"
NO_PROMETHEUS = "Prometheus is not configured; add --prometheus URL"
SERIES = "count(trtspec_requests_total)"


@dataclass(frozen=True)
class ReadinessInputs:
    """Evidence that the readiness items are evaluated from."""

    root: Path
    manifest: Manifest
    manifest_sha256: str
    published: datetime  # modification time of the manifest
    report: VerificationReport | None  # verification by this user on this machine
    verified: datetime | None  # time of `report`
    has_copy: bool  # the artifact contains an untrusted report
    documents: Sequence[SavedDocument]
    deployed: Sequence[DeploymentRecord]
    prometheus: Prometheus | None

    @property
    def recipe(self) -> ResolvedRecipe:
        return self.manifest.recipe

    @property
    def drafts(self) -> bool:
        return self.recipe.speculation.method != "none"

    @cached_property
    def prompts(self) -> str:
        """Return the digest of the artifact's default prompts."""
        return prompts_sha256(prompt.text for prompt in artifact_prompts(self.root, None))

    def documents_of_kind(self, kind: str) -> list[SavedDocument]:
        """Return the saved documents of a kind: matching ones first, each group from newest to oldest."""
        found = [each for each in self.documents if each.kind == kind]
        return sorted(found, key=lambda each: (not self.rejection_reason(each), each.time), reverse=True)

    def rejection_reason(self, document: SavedDocument) -> str:
        """Return the reason why a saved document does not match this artifact, or "" if it matches."""
        if against := mismatch_reason(document.values, self.manifest, self.manifest_sha256):
            return against
        is_named = document.text("target", "sha256") or recorded_manifest(document.values)
        return "" if is_named or document.time >= self.published else "older than the artifact"


def gather(root: Path, others: Sequence[Path], prometheus: Prometheus | None) -> ReadinessInputs:
    """Read the evidence; raises TrtspecError if the artifact is missing or a file of `others` is not a document."""
    manifest = load_manifest(root)
    report, verified = load_verification(root)
    return ReadinessInputs(
        root=root,
        manifest=manifest,
        manifest_sha256=manifest_sha256(root),
        published=datetime.fromtimestamp((root / MANIFEST).stat().st_mtime, timezone.utc),
        report=report,
        verified=verified,
        has_copy=report is None and read_untrusted_report(root) is not None,
        documents=[*_saved_results(root, target_sha256(manifest)), *(read_document(path) for path in others)],
        deployed=list(_deployed(manifest.recipe.name, manifest_sha256(root))),
        prometheus=prometheus,
    )


def _saved_results(root: Path, target: str) -> Iterator[SavedDocument]:
    for path in list_documents(root, target):
        with suppress(TrtspecError):  # ignore damaged files
            yield read_document(path)


def _deployed(name: str, manifest: str) -> Iterator[DeploymentRecord]:
    """Yield the deployments of this artifact, and of other artifacts under its recipe's name."""
    for each in deployment_names():
        with suppress(TrtspecError):
            record = DeploymentJournal(each).read_existing()
            if record.manifest == manifest or record.name == name:
                yield record


@dataclass(frozen=True)
class ReadinessItem:
    """The state of an item with the evidence for it, the command that completes it and the source documents."""

    state: str
    evidence: str
    command: str = ""
    documents: Sequence[SavedDocument] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return the item as an entry of the `readiness --json` document, without its name."""
        documents = [
            {"path": str(each.path), "kind": each.kind, "sha256": each.sha256, "time": each.time.isoformat()}
            for each in self.documents
        ]
        return {"state": self.state, "evidence": self.evidence, "command": self.command, "documents": documents}


def done(evidence: str, documents: Sequence[SavedDocument] = ()) -> ReadinessItem:
    return ReadinessItem(DONE, evidence, documents=documents)


def missing(evidence: str, command: str, documents: Sequence[SavedDocument] = ()) -> ReadinessItem:
    """Return an item in the state "missing" with the command that completes it."""
    return ReadinessItem(MISSING, evidence, command, documents)


def not_needed(evidence: str) -> ReadinessItem:
    return ReadinessItem(NOT_NEEDED, evidence)


def built(facts: ReadinessInputs) -> ReadinessItem:
    """Report the manifest and the date of the artifact; this item is always done."""
    files = len(facts.manifest.files)
    return done(f"manifest {facts.manifest_sha256[:SHORT]}, {files} files, {facts.published:{DAY}}")


def verified(facts: ReadinessInputs) -> ReadinessItem:
    """Check that the artifact was verified on this machine and that all checks passed."""
    command, found = f"trtspec verify {facts.root}", facts.report
    if found is None:
        return missing(ELSEWHERE if facts.has_copy else "not verified on this machine", command)
    failed, when = [check.name for check in found.checks if not check.ok], f"({facts.verified:{DAY}})"
    if failed:
        return missing(f"failed: {', '.join(failed)} {when}", command)
    return done(f"{len(found.checks)} checks passed {when}")


def gates(facts: ReadinessInputs) -> ReadinessItem:
    """Check that all gates of the recipe passed on the engine that serves the artifact."""
    in_process = find_backend(facts.manifest.backend.name).in_process
    command = f"trtspec verify {facts.root}" if in_process else f"trtspec bench {facts.recipe.name} --gates"
    wanted = active_gates(facts.recipe)
    if not wanted or not facts.drafts:
        return not_needed(NOT_SPECULATING if not facts.drafts else "the recipe sets no gates")
    judged = {check.name: check for check in (facts.report.checks if facts.report else ())}
    if open_ := [name for name in wanted if name not in judged]:
        return missing(f"not evaluated: {', '.join(open_)}", command)
    failed = [judged[name].detail for name in wanted if not judged[name].ok]
    if unmet := failed or [judged[name].detail for name in wanted if judged[name].state == UNDECIDED]:
        return missing("; ".join(unmet), command)
    return done("; ".join(judged[name].detail for name in wanted))


def limits(facts: ReadinessInputs) -> ReadinessItem:
    """Check that the recipe sets the gates min_acceptance and min_speedup."""
    if not facts.drafts:
        return not_needed(NOT_SPECULATING)
    wanted = {"min_acceptance": facts.recipe.gates.min_acceptance, "min_speedup": facts.recipe.gates.min_speedup}
    if unset := [name for name, limit in wanted.items() if not limit]:
        settings = " ".join(f"--set gates.{name}=N" for name in unset)
        return missing(f"not set: {', '.join(unset)}", f"trtspec build RECIPE {settings}")
    return done(", ".join(f"{name} {limit:g}" for name, limit in wanted.items()))


def parity(facts: ReadinessInputs) -> ReadinessItem:
    """Check that the output of a quantized target was compared with the source checkpoint's output."""
    stored = facts.recipe.target.quantization
    if stored.weights == "none" and stored.kv_cache == "none":
        return not_needed("the recipe does not quantize")
    check = next((each for each in (facts.report.checks if facts.report else ()) if each.name == "parity"), None)
    if check is None or not check.ok:
        return missing(check.detail if check else "not compared", f"trtspec verify {facts.root}")
    return done(check.detail)


def defaults(facts: ReadinessInputs) -> ReadinessItem:
    """Check that no recipe key is less strict than its default."""
    acceptance = facts.recipe.speculation.acceptance
    loosened = [] if acceptance == "exact" else [f"speculation.options.lossy ({acceptance} acceptance)"]
    loosened += map(str, find_unsafe_overrides(facts.recipe))
    if loosened:
        return missing(", ".join(loosened), "trtspec build RECIPE, without these keys")
    return done("no gate, limit or serving setting is looser than its default")


def warmup(facts: ReadinessInputs) -> ReadinessItem:
    """Check that the server warms up before its first request."""
    if facts.recipe.serving.warmup:
        return done("serving.warmup: Triton generates texts before its models are ready")
    if not find_backend(facts.manifest.backend.name).warms:
        return not_needed("the engine warms up itself; deploy --wait-for-warmup waits for a first text")
    return missing("serving.warmup is off", "trtspec build RECIPE --set serving.warmup=true")


def rollout(facts: ReadinessInputs) -> ReadinessItem:
    """Check that a rollout starts with a fraction of the traffic and has limits for failures and latency."""
    serving, wanted = facts.recipe.serving, facts.recipe.serving.rollout
    if not serving.openai:
        why = "serving.openai is off: traffic cannot be split, and only synthetic probes decide"
        return missing(why, "trtspec build RECIPE --set serving.openai=true")
    if wanted.canary[0] == 100:
        why = "the first canary step is 100 %"
        return missing(why, "trtspec build RECIPE --set 'serving.rollout.canary=[5,25,100]'")
    shares = ", ".join(f"{share} %" for share in wanted.canary)
    rules = f"at most {wanted.max_failed} failures and {wanted.max_latency_ratio:g} times the latency"
    return done(f"{shares}, {wanted.hold_s:g} s each, {rules}")


def baseline(facts: ReadinessInputs) -> ReadinessItem:
    """Check that the target was measured without speculation."""
    found = facts.documents_of_kind("baseline")
    return _measured(facts, found, f"trtspec baseline {facts.root}", "{median_tokens_per_s:g} tokens/s")


def load(facts: ReadinessInputs) -> ReadinessItem:
    """Check that speculation was measured under load; a benchmark with one request at a time does not suffice."""
    command = f"trtspec bench {facts.recipe.name} --concurrency 1,4,16 --json"
    alone = facts.documents_of_kind("bench")
    if facts.documents_of_kind("load") or not alone or not facts.drafts:
        return measured_draft(facts, "load", command)
    single = _measured(facts, alone, command, "{speedup:g} times as fast")
    return missing(f"{single.evidence}, one request at a time", command, alone)


def measured_draft(facts: ReadinessInputs, kind: str, command: str) -> ReadinessItem:
    """Check that a saved document of a kind, such as "profile", "tune" or "load", has measured the draft."""
    return _measured(facts, facts.documents_of_kind(kind), command) if facts.drafts else not_needed(NOT_SPECULATING)


def _measured(facts: ReadinessInputs, found: Sequence[SavedDocument], command: str, result: str = "") -> ReadinessItem:
    """Return the item for the first document in `found`; `result` is a format string for its main number."""
    if not found:
        return missing("no saved result; pass one with --results FILE", command)
    best = found[0]
    named = f"{best.path.name} {best.sha256[:SHORT]}, {best.time:{DAY}}"
    if against := facts.rejection_reason(best):
        return missing(f"{named}: {against}", command, found)
    digest = best.text("prompts", "sha256") or best.text("prompt_set", "sha256")
    note = "with prompts other than the artifact's" if digest and digest != facts.prompts else ""
    details = "; ".join(filter(None, (_formatted(result, best.values), note)))
    return done(f"{named}: {details}" if details else named, found)


def _formatted(form: str, values: Mapping[str, Any]) -> str:
    """Format a number of a document, or return "" if the document lacks it."""
    try:
        return form.format_map(values)
    except (KeyError, ValueError, TypeError):
        return ""


def metrics(facts: ReadinessInputs) -> ReadinessItem:
    """Check that Prometheus scrapes the servers' metrics."""
    command = f"trtspec metrics scrape {facts.recipe.name}"
    if facts.prometheus is None:
        return missing(NO_PROMETHEUS, command)
    if not (series := facts.prometheus.value(SERIES)):
        return missing(f"{facts.prometheus.url} lacks trtspec_requests_total", command)
    return done(f"{facts.prometheus.url} has {series:g} series of trtspec_requests_total")


def alerts(facts: ReadinessInputs) -> ReadinessItem:
    """Check that Prometheus has all alerting rules of trtspec."""
    command = "trtspec metrics rules"
    if facts.prometheus is None:
        return missing(NO_PROMETHEUS, command)
    wanted = {rule["alert"] for group in rules()["groups"] for rule in group["rules"] if "alert" in rule}
    if lacking := sorted(wanted - facts.prometheus.alerts()):
        return missing(f"{facts.prometheus.url} lacks {', '.join(lacking)}", command)
    return done(f"{facts.prometheus.url} has all {len(wanted)} rules")


def rollback(facts: ReadinessInputs) -> ReadinessItem:
    """Check that a rollback target exists: the live revision, or a previous one that is kept."""
    found = [way for record in facts.deployed if (way := _rollback_target(facts, record))]
    if found:
        return done("; ".join(found))
    why = "no other revision was deployed under this name; deploy the target alone first"
    return missing(why, "trtspec build RECIPE --set speculation.method=none --out build/alone")


def _rollback_target(facts: ReadinessInputs, record: DeploymentRecord) -> str:
    """Return a description of the revision that a deployment could roll back to, or "" without one."""
    if record.manifest != facts.manifest_sha256:
        if record.state_now not in ("live", "restarting"):
            return ""
        return f"{record.name} serves revision {record.revision}, which stays available during a rollout"
    try:
        before, _ = previous_revision(DeploymentJournal(record.name), record)
    except DeployError:
        return ""
    return f"revision {before} of {record.name} is kept"


ITEMS: dict[str, Callable[[ReadinessInputs], ReadinessItem]] = {
    "built": built,
    "verified": verified,
    "gates": gates,
    "limits": limits,
    "parity": parity,
    "defaults": defaults,
    "warm-up": warmup,
    "rollout": rollout,
    "baseline": baseline,
    "profile": partial(measured_draft, kind="profile", command="trtspec profile RECIPE --prompts FILE --json"),
    "tuning": partial(measured_draft, kind="tune", command="trtspec tune RECIPE --prompts FILE --json"),
    "load": load,
    "metrics": metrics,
    "alerts": alerts,
    "rollback": rollback,
}


def check(facts: ReadinessInputs) -> dict[str, ReadinessItem]:
    """Evaluate all items; return them by name, in the order of ITEMS."""
    return {name: item(facts) for name, item in ITEMS.items()}


def missing_items(items: Mapping[str, ReadinessItem]) -> dict[str, ReadinessItem]:
    return {name: item for name, item in items.items() if item.state == MISSING}


def readiness_document(facts: ReadinessInputs, items: Mapping[str, ReadinessItem]) -> dict[str, Any]:
    """Return the document of `readiness --json`."""
    return {
        "format_version": 1,
        "name": facts.recipe.name,
        "artifact": str(facts.root),
        "manifest": facts.manifest_sha256,
        "missing": len(missing_items(items)),
        "rows": [{"name": name, **item.as_dict()} for name, item in items.items()],
    }
