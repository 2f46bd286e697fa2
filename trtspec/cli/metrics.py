# SPDX-License-Identifier: Apache-2.0
"""`trtspec metrics`."""

from __future__ import annotations

import sys
from enum import Enum
from typing import Annotated, Any

import typer

from trtspec.cli.options import AnyName, Json

RUNNING = ("starting", "live")


class What(str, Enum):
    """What a monitoring system is given."""

    dashboard = "dashboard"
    rules = "rules"
    scrape = "scrape"


def metrics(
    what: Annotated[
        What,
        typer.Argument(
            metavar="WHAT",
            help="dashboard: JSON that Grafana imports. rules: records and alerts for Prometheus. scrape: where "
            "Prometheus finds the metrics of NAME, or of every deployment that runs.",
            show_default=False,
        ),
    ],
    name: AnyName = None,
    json: Json = False,
) -> None:
    """Print what Grafana and Prometheus need to watch deployments; docs/metrics.md lists the metrics.

    Example: trtspec metrics rules > trtspec-rules.yaml
    """
    from trtspec.cli.render import print_json
    from trtspec.errors import TrtspecError

    if name is not None and what is not What.scrape:
        raise TrtspecError(f"{what.value} is the same for all deployments", hint="leave the name out")
    found = _document(what, name)
    if json:
        print_json({"format_version": 1, what.value: found})
    elif what is What.dashboard:
        print_json(found)
    else:
        sys.stdout.write(_text(what, found))


def _document(what: What, name: str | None) -> dict[str, Any]:
    if what is What.dashboard:
        from trtspec.monitoring.dashboard import dashboard

        return dashboard()
    if what is What.rules:
        from trtspec.monitoring.rules import rules

        return rules()
    from trtspec.monitoring.scrape import scrape_config

    return scrape_config(_endpoints(name))


def _endpoints(name: str | None) -> dict[str, str]:
    """Return where the metrics of a deployment are, or of all that run."""
    from trtspec.deploy.base import deployments
    from trtspec.deploy.journal import DeploymentJournal
    from trtspec.errors import TrtspecError

    if name is not None:
        return {name: DeploymentJournal(name).known().endpoints["metrics"]}
    running = {each["name"]: each["endpoints"]["metrics"] for each in deployments() if each["state"] in RUNNING}
    if not running:
        raise TrtspecError("no deployment runs", hint="trtspec deploy ARTIFACT --detach, or name one that ended")
    return running


def _text(what: What, found: dict[str, Any]) -> str:
    if what is What.rules:
        from trtspec.monitoring.rules import rules_text

        return rules_text()
    import yaml

    return str(yaml.safe_dump(found, sort_keys=False))


command = metrics
