# SPDX-License-Identifier: Apache-2.0
"""Prometheus' recording and alerting rules, which lie beside this file as it reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

RULES = Path(__file__).with_name("rules.yaml")


def rules_text() -> str:
    """Return the rules as a file of Prometheus."""
    return RULES.read_text(encoding="utf-8")


def rules() -> dict[str, Any]:
    """Return the rules as data: `groups`."""
    import yaml

    document: dict[str, Any] = yaml.safe_load(rules_text())
    return document
