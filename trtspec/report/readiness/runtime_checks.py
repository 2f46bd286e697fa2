# SPDX-License-Identifier: Apache-2.0
"""Items about operation: metrics, alerts and rollback."""

from __future__ import annotations

from trtspec.core.errors import DeployError
from trtspec.deployment.journal import DeploymentJournal, DeploymentRecord
from trtspec.deployment.rollout.commands import previous_revision
from trtspec.report.monitoring.rules import rules
from trtspec.report.readiness.facts import ReadinessInputs
from trtspec.report.readiness.row import ReadinessItem, done, missing

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


ROWS = (metrics, alerts, rollback)
