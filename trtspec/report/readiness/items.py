# SPDX-License-Identifier: Apache-2.0
"""Items of production readiness: artifact, measurements and operation, each with its state, evidence and command."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from trtspec.backends.base import find_backend
from trtspec.bench.documents import SavedDocument
from trtspec.bench.gates import UNDECIDED, active_gates
from trtspec.core.errors import DeployError
from trtspec.deployment.journal import DeploymentJournal, DeploymentRecord
from trtspec.deployment.rollout.commands import previous_revision
from trtspec.recipe.resolve import find_unsafe_overrides
from trtspec.report.monitoring.configuration import rules
from trtspec.report.readiness.facts import ReadinessInputs

DONE, MISSING, NOT_NEEDED = "done", "missing", "not needed"
MEASURED = "%Y-%m-%d"


@dataclass(frozen=True)
class ReadinessItem:
    """An item; `evidence` describes the findings, and `documents` are their sources."""

    name: str
    state: str
    evidence: str
    command: str = ""
    documents: Sequence[SavedDocument] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return the row as an entry of the JSON document."""
        documents = [
            {"path": str(each.path), "kind": each.kind, "sha256": each.sha256, "time": each.time.isoformat()}
            for each in self.documents
        ]
        return {
            "name": self.name,
            "state": self.state,
            "evidence": self.evidence,
            "command": self.command,
            "documents": documents,
        }


def done(name: str, evidence: str, documents: Sequence[SavedDocument] = ()) -> ReadinessItem:
    """Return a row with state "done"."""
    return ReadinessItem(name, DONE, evidence, documents=documents)


def missing(name: str, evidence: str, command: str, documents: Sequence[SavedDocument] = ()) -> ReadinessItem:
    """Return a row with state "missing" and the command that completes it."""
    return ReadinessItem(name, MISSING, evidence, command, documents)


def not_needed(name: str, evidence: str) -> ReadinessItem:
    """Return a row with state "not needed"."""
    return ReadinessItem(name, NOT_NEEDED, evidence)


SHORT = 12
ELSEWHERE = "measured elsewhere, not verified here"
NOT_SPECULATING = "the recipe does not speculate"


def built(facts: ReadinessInputs) -> ReadinessItem:
    """Report the manifest and the date of the artifact; always done."""
    named = f"manifest {facts.manifest_sha256[:SHORT]}, {len(facts.manifest.files)} files"
    return done("built", f"{named}, {facts.published:{MEASURED}}")


def verified(facts: ReadinessInputs) -> ReadinessItem:
    """Check that the artifact was verified on this machine and that all checks passed."""
    command, found = f"trtspec verify {facts.root}", facts.report
    if found is None:
        return missing("verified", ELSEWHERE if facts.has_copy else "not verified on this machine", command)
    failed, when = [check.name for check in found.checks if not check.ok], f"({facts.verified:{MEASURED}})"
    if failed:
        return missing("verified", f"failed: {', '.join(failed)} {when}", command)
    return done("verified", f"{len(found.checks)} checks passed {when}")


def gates(facts: ReadinessInputs) -> ReadinessItem:
    """Check that the recipe's gates passed on the serving engine."""
    in_process = find_backend(facts.manifest.backend.name).in_process
    command = f"trtspec verify {facts.root}" if in_process else f"trtspec bench {facts.recipe.name} --gates"
    wanted = active_gates(facts.recipe)
    if not wanted or not facts.drafts:
        return not_needed("gates", NOT_SPECULATING if not facts.drafts else "the recipe sets no gates")
    judged = {check.name: check for check in (facts.report.checks if facts.report else ())}
    if open_ := [name for name in wanted if name not in judged]:
        return missing("gates", f"not evaluated: {', '.join(open_)}", command)
    if failed := [judged[name].detail for name in wanted if not judged[name].ok]:
        return missing("gates", "; ".join(failed), command)
    if undecided := [judged[name].detail for name in wanted if judged[name].state == UNDECIDED]:
        return missing("gates", "; ".join(undecided), command)
    return done("gates", "; ".join(judged[name].detail for name in wanted))


def limits(facts: ReadinessInputs) -> ReadinessItem:
    """Check that the recipe sets min_acceptance and min_speedup."""
    if not facts.drafts:
        return not_needed("limits", NOT_SPECULATING)
    wanted = {"min_acceptance": facts.recipe.gates.min_acceptance, "min_speedup": facts.recipe.gates.min_speedup}
    if unset := [name for name, limit in wanted.items() if not limit]:
        settings = " ".join(f"--set gates.{name}=N" for name in unset)
        return missing("limits", f"not set: {', '.join(unset)}", f"trtspec build RECIPE {settings}")
    return done("limits", ", ".join(f"{name} {limit:g}" for name, limit in wanted.items()))


def parity(facts: ReadinessInputs) -> ReadinessItem:
    """Check that a quantized target was compared with its source."""
    stored = facts.recipe.target.quantization
    if stored.weights == "none" and stored.kv_cache == "none":
        return not_needed("parity", "the recipe does not quantize")
    check = next((each for each in (facts.report.checks if facts.report else ()) if each.name == "parity"), None)
    if check is None or not check.ok:
        return missing("parity", check.detail if check else "not compared", f"trtspec verify {facts.root}")
    return done("parity", check.detail)


def defaults(facts: ReadinessInputs) -> ReadinessItem:
    """Check that no recipe key loosens a default."""
    loosened = list(_loosened(facts))
    if loosened:
        return missing("defaults", ", ".join(loosened), "trtspec build RECIPE, without these keys")
    return done("defaults", "no gate, limit or serving setting is looser than its default")


def _loosened(facts: ReadinessInputs) -> Iterator[str]:
    if facts.recipe.speculation.acceptance != "exact":
        yield f"speculation.options.lossy ({facts.recipe.speculation.acceptance} acceptance)"
    yield from map(str, find_unsafe_overrides(facts.recipe))


def warmup(facts: ReadinessInputs) -> ReadinessItem:
    """Check that the server warms up before its first request."""
    if facts.recipe.serving.warmup:
        return done("warm-up", "serving.warmup: Triton generates texts before its models are ready")
    if not find_backend(facts.manifest.backend.name).warms:
        return not_needed("warm-up", "the engine warms up itself; deploy --wait-for-warmup waits for a first text")
    return missing("warm-up", "serving.warmup is off", "trtspec build RECIPE --set serving.warmup=true")


def rollout(facts: ReadinessInputs) -> ReadinessItem:
    """Check that a rollout starts with a share of the requests, under limits."""
    serving, wanted = facts.recipe.serving, facts.recipe.serving.rollout
    if not serving.openai:
        why = "serving.openai is off: traffic cannot be split, and only synthetic probes decide"
        return missing("rollout", why, "trtspec build RECIPE --set serving.openai=true")
    if wanted.canary[0] == 100:
        command = "trtspec build RECIPE --set 'serving.rollout.canary=[5,25,100]'"
        return missing("rollout", "the first canary step is 100 %", command)
    shares = ", ".join(f"{share} %" for share in wanted.canary)
    rules = f"at most {wanted.max_failed} failures and {wanted.max_latency_ratio:g} times the latency"
    return done("rollout", f"{shares}, {wanted.hold_s:g} s each, {rules}")


ARTIFACT_ROWS = (built, verified, gates, limits, parity, defaults, warmup, rollout)


Describe = Callable[[SavedDocument], str]


def baseline(facts: ReadinessInputs) -> ReadinessItem:
    """Check that the target alone was measured."""
    return _row("baseline", facts, facts.of_kind("baseline"), f"trtspec baseline {facts.root}", _tokens_per_s)


def profile(facts: ReadinessInputs) -> ReadinessItem:
    """Check that drafts were profiled."""
    return _draft_row("profile", facts, facts.of_kind("profile"), "trtspec profile RECIPE --prompts FILE --json")


def tune(facts: ReadinessInputs) -> ReadinessItem:
    """Check that draft length and options were tuned."""
    return _draft_row("tuning", facts, facts.of_kind("tune"), "trtspec tune RECIPE --prompts FILE --json")


def load(facts: ReadinessInputs) -> ReadinessItem:
    """Check that speculation was measured under load; a benchmark of single requests does not suffice."""
    command = f"trtspec bench {facts.recipe.name} --concurrency 1,4,16 --json"
    found, alone = facts.of_kind("load"), facts.of_kind("bench")
    if found or not alone or not facts.drafts:
        return _draft_row("load", facts, found, command)
    single = _row("load", facts, alone, command, _speedup)
    return missing("load", f"{single.evidence}, one request at a time", command, alone)


def _nothing(document: SavedDocument) -> str:
    return ""


def _draft_row(
    name: str, facts: ReadinessInputs, found: Sequence[SavedDocument], command: str, describe: Describe = _nothing
) -> ReadinessItem:
    if not facts.drafts:
        return not_needed(name, NOT_SPECULATING)
    return _row(name, facts, found, command, describe)


def _row(
    name: str, facts: ReadinessInputs, found: Sequence[SavedDocument], command: str, describe: Describe
) -> ReadinessItem:
    """Return the row for the first document, which is the best one."""
    if not found:
        return missing(name, "no saved result; pass one with --results FILE", command)
    best = found[0]
    named = f"{best.path.name} {best.sha256[:SHORT]}, {best.time:{MEASURED}}"
    if against := facts.objection(best):
        return missing(name, f"{named}: {against}", command, found)
    details = "; ".join(filter(None, (describe(best), facts.remark(best))))
    return done(name, f"{named}: {details}" if details else named, found)


def _tokens_per_s(document: SavedDocument) -> str:
    return f"{_number(document, 'median_tokens_per_s')} tokens/s"


def _speedup(document: SavedDocument) -> str:
    return f"{_number(document, 'speedup')} times as fast"


def _number(document: SavedDocument, key: str) -> str:
    value = document.values.get(key)
    return f"{value:g}" if isinstance(value, int | float) else "?"


MEASURED_ROWS = (baseline, profile, tune, load)


NOT_CONFIGURED = "Prometheus is not configured"
SERIES = "count(trtspec_requests_total)"


def metrics(facts: ReadinessInputs) -> ReadinessItem:
    """Check that Prometheus scrapes the servers' metrics."""
    command = f"trtspec metrics scrape {facts.recipe.name}"
    if facts.prometheus is None:
        return missing("metrics", f"{NOT_CONFIGURED}; add --prometheus URL", command)
    if not (series := facts.prometheus.value(SERIES)):
        return missing("metrics", f"{facts.prometheus.url} lacks trtspec_requests_total", command)
    return done("metrics", f"{facts.prometheus.url} has {series:g} series of trtspec_requests_total")


def alerts(facts: ReadinessInputs) -> ReadinessItem:
    """Check that Prometheus has all alerting rules of trtspec."""
    command = "trtspec metrics rules"
    if facts.prometheus is None:
        return missing("alerts", f"{NOT_CONFIGURED}; add --prometheus URL", command)
    wanted = {rule["alert"] for group in rules()["groups"] for rule in group["rules"] if "alert" in rule}
    if lacking := sorted(wanted - facts.prometheus.alerts()):
        return missing("alerts", f"{facts.prometheus.url} lacks {', '.join(lacking)}", command)
    return done("alerts", f"{facts.prometheus.url} has all {len(wanted)} rules")


def rollback(facts: ReadinessInputs) -> ReadinessItem:
    """Check that a rollback target exists: the live revision or a previous one."""
    found = [way for record in facts.deployed if (way := _rollback_target(facts, record))]
    if found:
        return done("rollback", "; ".join(found))
    why = "no other revision was deployed under this name; deploy the target alone first"
    return missing("rollback", why, "trtspec build RECIPE --set speculation.method=none --out build/alone")


def _rollback_target(facts: ReadinessInputs, record: DeploymentRecord) -> str:
    """Return a description of the revision that a deployment could roll back to, or ""."""
    if record.manifest != facts.manifest_sha256:
        serves = record.state_now in ("live", "restarting")
        return (
            f"{record.name} serves revision {record.revision}, which stays available during a rollout" if serves else ""
        )
    try:
        before, _ = previous_revision(DeploymentJournal(record.name), record)
    except DeployError:
        return ""
    return f"revision {before} of {record.name} is kept"


RUNTIME_ROWS = (metrics, alerts, rollback)


FORMAT_VERSION = 1
ROWS = (*ARTIFACT_ROWS, *MEASURED_ROWS, *RUNTIME_ROWS)


def check(facts: ReadinessInputs) -> list[ReadinessItem]:
    """Return the rows of all items."""
    return [row(facts) for row in ROWS]


def missing_rows(rows: Sequence[ReadinessItem]) -> list[ReadinessItem]:
    """Return the rows with state "missing"."""
    return [row for row in rows if row.state == MISSING]


def checklist_document(facts: ReadinessInputs, rows: Sequence[ReadinessItem]) -> dict[str, Any]:
    """Return the document of `checklist --json`."""
    return {
        "format_version": FORMAT_VERSION,
        "name": facts.recipe.name,
        "artifact": str(facts.root),
        "manifest": facts.manifest_sha256,
        "missing": len(missing_rows(rows)),
        "rows": [row.as_dict() for row in rows],
    }
