# SPDX-License-Identifier: Apache-2.0
"""Recording and alerting rules for Prometheus, from `rules.yaml`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

RULES = Path(__file__).with_name("rules.yaml")


def rules_text() -> str:
    """Return the rules as the text of a Prometheus rule file."""
    return RULES.read_text(encoding="utf-8")


def rules() -> dict[str, Any]:
    """Return the rules as a dictionary with the key `groups`."""
    from trtspec.core.package_data import load_package_yaml

    document: dict[str, Any] = load_package_yaml(RULES)
    return document
