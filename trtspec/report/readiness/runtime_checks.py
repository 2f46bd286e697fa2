# SPDX-License-Identifier: Apache-2.0
"""Rows about what runs: metrics that somebody reads, alerts, and a way back."""

from __future__ import annotations

from trtspec.core.errors import DeployError
from trtspec.deployment.journal import DeploymentJournal, Record
from trtspec.deployment.rollout.commands import before_of
from trtspec.report.monitoring.rules import rules
from trtspec.report.readiness.facts import Facts
from trtspec.report.readiness.row import Row, done, missing

NOT_ASKED = "no Prometheus was asked"
SERIES = "count(trtspec_requests_total)"


def metrics(facts: Facts) -> Row:
    """A Prometheus reads the servers' metrics."""
    command = f"trtspec metrics scrape {facts.recipe.name}"
    if facts.prometheus is None:
        return missing("metrics", f"{NOT_ASKED}: --prometheus URL", command)
    if not (series := facts.prometheus.value(SERIES)):
        return missing("metrics", f"{facts.prometheus.url} has no trtspec_requests_total", command)
    return done("metrics", f"{facts.prometheus.url} has {series:g} series of trtspec_requests_total")


def alerts(facts: Facts) -> Row:
    """The Prometheus watches for what the rules of trtspec name."""
    command = "trtspec metrics rules"
    if facts.prometheus is None:
        return missing("alerts", f"{NOT_ASKED}: --prometheus URL", command)
    wanted = {rule["alert"] for group in rules()["groups"] for rule in group["rules"] if "alert" in rule}
    if lacking := sorted(wanted - facts.prometheus.alerts()):
        return missing("alerts", f"{facts.prometheus.url} lacks {', '.join(lacking)}", command)
    return done("alerts", f"{facts.prometheus.url} has all {len(wanted)}")


def rollback(facts: Facts) -> Row:
    """There is something to come back to: what serves now, or what served before."""
    found = [way for record in facts.deployed if (way := _way_back(facts, record))]
    if found:
        return done("rollback", "; ".join(found))
    why = "nothing else serves or served under its name here: a target alone, deployed first, is a way back"
    return missing("rollback", why, "trtspec build RECIPE --set speculation.method=none --out build/alone")


def _way_back(facts: Facts, record: Record) -> str:
    """Return to what a deployment could come back from this artifact, "" where to nothing."""
    if record.manifest != facts.manifest_sha256:
        serves = record.state_now in ("live", "restarting")
        return f"{record.name} serves revision {record.revision}, which a rollout leaves serving" if serves else ""
    try:
        before, _ = before_of(DeploymentJournal(record.name), record)
    except DeployError:
        return ""
    return f"revision {before} of {record.name} is kept"


ROWS = (metrics, alerts, rollback)
