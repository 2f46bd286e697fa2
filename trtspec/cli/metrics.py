# SPDX-License-Identifier: Apache-2.0
"""`trtspec metrics`: print monitoring configuration or a deployment's metrics."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from trtspec.cli import completing
from trtspec.cli.options import AnyName, Json
from trtspec.cli.render import print_json
from trtspec.core.errors import TrtspecError

DASHBOARD, RULES, SCRAPE = "dashboard", "rules", "scrape"
RUNNING = ("starting", "live")


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
    from trtspec.report.monitoring.configuration import dashboard, rules, rules_text, scrape_config

    if what not in (DASHBOARD, RULES, SCRAPE):
        show_metrics(what, name, json)
        return
    if name is not None and what != SCRAPE:
        raise TrtspecError(f"metrics {what} does not take a deployment name", hint="omit the name")
    found = dashboard() if what == DASHBOARD else rules() if what == RULES else scrape_config(_endpoints(name))
    if json:
        print_json({"format_version": 1, what: found})
    elif what == DASHBOARD:
        print_json(found)
    elif what == RULES:
        sys.stdout.write(rules_text())
    else:
        import yaml

        sys.stdout.write(yaml.safe_dump(found, sort_keys=False))


def show_metrics(deployment: str, name: str | None, as_json: bool) -> None:
    from trtspec.core.prometheus_text import parse_metrics
    from trtspec.deployment.journal import DeploymentJournal, deployment_names
    from trtspec.report.monitoring.prometheus import fetch

    if deployment not in deployment_names():
        names = ", ".join(deployment_names()) or "none"
        kinds = ", ".join(map(repr, (DASHBOARD, RULES, SCRAPE)))
        raise TrtspecError(f"{deployment!r} is neither one of {kinds} nor a deployment; deployments: {names}")
    if name is not None:
        raise TrtspecError("metrics takes only one deployment", hint=f"trtspec metrics {deployment}")
    endpoints = DeploymentJournal(deployment).read_existing().endpoints
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


def _endpoints(name: str | None) -> dict[str, str]:
    """Return the metrics addresses by deployment name, for one deployment or for all running ones."""
    from trtspec.deployment.base import deployments
    from trtspec.deployment.journal import DeploymentJournal

    if name is not None:
        return {name: DeploymentJournal(name).read_existing().endpoints["metrics"]}
    running = {each["name"]: each["endpoints"]["metrics"] for each in deployments() if each["state"] in RUNNING}
    if not running:
        raise TrtspecError(
            "no deployment is running", hint="run trtspec deploy ARTIFACT --detach, or name a stopped one"
        )
    return running


panel = "Serve"
command = metrics
