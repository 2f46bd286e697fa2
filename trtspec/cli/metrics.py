# SPDX-License-Identifier: Apache-2.0
"""`trtspec metrics`."""

from __future__ import annotations

import sys
from enum import Enum
from typing import Annotated, Any

import typer

from trtspec.cli import completing
from trtspec.cli.options import AnyName, Json
from trtspec.cli.render import print_json
from trtspec.core.errors import TrtspecError

RUNNING = ("starting", "live")


class MetricsDocument(str, Enum):
    """Configuration document for a monitoring system."""

    dashboard = "dashboard"
    rules = "rules"
    scrape = "scrape"


def metrics(
    what: Annotated[
        str,
        typer.Argument(
            metavar="WHAT",
            help="dashboard (for Grafana), rules or scrape (for Prometheus), or a deployment to show its metrics.",
            show_default=False,
            autocompletion=completing.metrics,
        ),
    ],
    name: AnyName = None,
    json: Json = False,
) -> None:
    """Print monitoring configuration or a deployment's metrics.

    dashboard prints JSON for Grafana. rules prints recording and alerting rules for Prometheus. scrape prints a scrape
    configuration for NAME or for all running deployments. docs/metrics.md lists the metrics.

    Example: trtspec metrics rules > trtspec-rules.yaml
    """
    if what not in [each.value for each in MetricsDocument]:
        show_metrics(what, name, json)
        return
    chosen = MetricsDocument(what)
    if name is not None and chosen is not MetricsDocument.scrape:
        raise TrtspecError(f"metrics {chosen.value} does not take a deployment name", hint="omit the name")
    found = _document(chosen, name)
    if json:
        print_json({"format_version": 1, chosen.value: found})
    elif chosen is MetricsDocument.dashboard:
        print_json(found)
    else:
        sys.stdout.write(_text(chosen, found))


def show_metrics(deployment: str, name: str | None, as_json: bool) -> None:
    """Print the current metrics of a deployment and of its OpenAI gateway."""
    from trtspec.core.prometheus_text import parse_metrics
    from trtspec.deployment.journal import DeploymentJournal, deployment_names
    from trtspec.report.monitoring.prometheus import fetch

    known = [each.value for each in MetricsDocument]
    if deployment not in deployment_names():
        names = ", ".join(deployment_names()) or "none"
        kinds = ", ".join(map(repr, known))
        raise TrtspecError(f"{deployment!r} is neither one of {kinds} nor a deployment; deployments: {names}")
    if name is not None:
        raise TrtspecError("metrics takes only one deployment", hint=f"trtspec metrics {deployment}")
    endpoints = DeploymentJournal(deployment).known().endpoints
    urls = [endpoints["metrics"]]
    if "openai" in endpoints:
        urls.append(endpoints["openai"].removesuffix("/v1") + "/metrics")
    texts = [fetch(url) for url in urls]
    if not as_json:
        sys.stdout.write("".join(text.decode(errors="replace") for text in texts))
        return
    found = {key: samples for text in texts for key, samples in parse_metrics(text).items()}
    values = {key: [{"labels": dict(each.labels), "value": each.value} for each in found[key]] for key in sorted(found)}
    print_json({"format_version": 1, "name": deployment, "metrics": values})


def _document(what: MetricsDocument, name: str | None) -> dict[str, Any]:
    if what is MetricsDocument.dashboard:
        from trtspec.report.monitoring.configuration import dashboard

        return dashboard()
    if what is MetricsDocument.rules:
        from trtspec.report.monitoring.configuration import rules

        return rules()
    from trtspec.report.monitoring.configuration import scrape_config

    return scrape_config(_endpoints(name))


def _endpoints(name: str | None) -> dict[str, str]:
    """Return the metrics addresses by deployment name, for one deployment or for all that are running."""
    from trtspec.deployment.base import deployments
    from trtspec.deployment.journal import DeploymentJournal

    if name is not None:
        return {name: DeploymentJournal(name).known().endpoints["metrics"]}
    running = {each["name"]: each["endpoints"]["metrics"] for each in deployments() if each["state"] in RUNNING}
    if not running:
        raise TrtspecError(
            "no deployment is running", hint="run trtspec deploy ARTIFACT --detach, or name a stopped one"
        )
    return running


def _text(what: MetricsDocument, found: dict[str, Any]) -> str:
    if what is MetricsDocument.rules:
        from trtspec.report.monitoring.configuration import rules_text

        return rules_text()
    import yaml

    return str(yaml.safe_dump(found, sort_keys=False))


panel = "Serve"
command = metrics
