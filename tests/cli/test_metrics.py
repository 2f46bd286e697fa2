# SPDX-License-Identifier: Apache-2.0
"""`trtspec metrics`: configuration of Grafana and Prometheus."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import yaml

from tests.conftest import Run
from tests.report.monitoring.prometheus import promtool
from trtspec.core.processes import start_time
from trtspec.deployment.journal import DeploymentJournal, DeploymentRecord
from trtspec.report.monitoring.configuration import RULES, dashboard, rules


def deployed(name: str, metrics: int, pid: int = 0) -> None:
    journal = DeploymentJournal(name)
    journal.root.mkdir(parents=True)
    started = start_time(pid) if pid else 1
    journal.write(DeploymentRecord(name, "live", "build", pid or 2**22, started, 1, 2, metrics, "shm", True))


def test_dashboard_is_printed_as_json(trtspec: Run) -> None:
    assert json.loads(trtspec("metrics", "dashboard").out) == dashboard()
    assert trtspec("metrics", "dashboard", "--json").document["dashboard"] == dashboard()


def test_rules_are_printed_as_the_prometheus_file(trtspec: Run) -> None:
    assert trtspec("metrics", "rules").out == RULES.read_text()
    assert trtspec("metrics", "rules", "--json").document["rules"] == rules()


def test_scrape_config_has_every_running_deployment(workplace: Path, trtspec: Run) -> None:
    deployed("b", 8002, os.getpid())
    deployed("a", 9002, os.getpid())
    deployed("ended", 7002)
    targets = [
        {"targets": ["127.0.0.1:9002"], "labels": {"deployment": "a"}},
        {"targets": ["127.0.0.1:8002"], "labels": {"deployment": "b"}},
    ]
    expected = {"scrape_configs": [{"job_name": "trtspec", "static_configs": targets}]}
    assert yaml.safe_load(trtspec("metrics", "scrape").out) == expected
    assert trtspec("metrics", "scrape", "--json").document["scrape"] == expected
    one = yaml.safe_load(trtspec("metrics", "scrape", "ended").out)
    assert [target["targets"] for target in one["scrape_configs"][0]["static_configs"]] == [["127.0.0.1:7002"]]


def test_scrape_config_passes_promtool(workplace: Path, trtspec: Run) -> None:
    deployed("a", 9002, os.getpid())
    (workplace / "prometheus.yml").write_text(trtspec("metrics", "scrape").out)
    assert "SUCCESS" in promtool("check", "config", workplace / "prometheus.yml")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("scrape",), "no deployment is running"),
        (("scrape", "nothing"), "no deployment 'nothing'; known: none"),
        (("rules", "quickstart"), "metrics rules does not take a deployment name"),
        (("tables",), "'tables' is neither one of 'dashboard', 'rules', 'scrape'"),
    ],
)
def test_invalid_arguments_are_rejected(
    workplace: Path, trtspec: Run, arguments: tuple[str, ...], message: str
) -> None:
    outcome = trtspec("metrics", *arguments)
    assert (outcome.code, outcome.out) == (1, "")
    assert message in outcome.err
