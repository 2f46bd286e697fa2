# SPDX-License-Identifier: Apache-2.0
"""The rules pass promtool's linter and its unit tests with series that must or must not alert."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from tests.report.monitoring.prometheus import promtool
from trtspec.report.monitoring.configuration import JOB, RULES, rules
from trtspec.serving.triton.python_models.metrics import FAMILIES

CASES = Path(__file__).with_name("rules_test.yaml")


def named(expression: str) -> set[str]:
    return set(re.findall(r"\btrtspec_\w+", re.sub(r"model:\w+:\w+", "", expression)))


def test_promtool_accepts_the_rules() -> None:
    assert "SUCCESS: 10 rules found" in promtool("check", "rules", RULES)


@pytest.mark.slow
def test_rules_pass_promtools_unit_tests(tmp_path: Path) -> None:
    cases = tmp_path / "cases.yaml"
    cases.write_text(CASES.read_text().replace("[RULES]", f"[{RULES}]"))
    assert "SUCCESS" in promtool("test", "rules", cases)


def test_every_rule_has_a_unit_test_case() -> None:
    cases = CASES.read_text()
    all_rules = [rule for group in rules()["groups"] for rule in group["rules"]]
    assert [rule for rule in all_rules if (rule.get("alert") or rule["record"]) not in cases] == []
    alerts = {rule["alert"] for rule in all_rules if "alert" in rule}
    assert alerts == {
        test["alertname"]
        for case in yaml.safe_load(cases)["tests"]
        for test in case.get("alert_rule_test", ())
        if test.get("exp_alerts")
    }


def test_rules_use_only_existing_metrics() -> None:
    expressions = [rule["expr"] for group in rules()["groups"] for rule in group["rules"]]
    assert set().union(*map(named, expressions)) <= {family.name for family in FAMILIES}
    assert f'up{{job="{JOB}"}} == 0' in expressions
