# SPDX-License-Identifier: Apache-2.0
"""What a Prometheus answers: the value of an expression, and the alerts that it watches for.

https://prometheus.io/docs/prometheus/latest/querying/api/
"""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from typing import Any
from urllib.parse import urlencode

from trtspec.checkpoints.safe_json import parse_object, shown
from trtspec.core.errors import DeployError
from trtspec.report.monitoring.fetch import fetch, split

MAX_VALUES = 200_000
HINT = "give the address of Prometheus itself, as http://127.0.0.1:9090"


class Prometheus:
    """A Prometheus at an address; nothing that it says is trusted."""

    def __init__(self, url: str, get: Callable[[str], bytes] = fetch) -> None:
        split(url)
        self.url = url.rstrip("/")
        self._get = get

    def value(self, expression: str) -> float | None:
        """Return what an expression is now, None where it has no value or none that is a number."""
        result = self._ask("query", query=expression).get("result")
        try:
            value = float(result[0]["value"][1])  # type: ignore[index]
        except (TypeError, LookupError, ValueError):
            return None
        return value if isfinite(value) else None

    def alerts(self) -> set[str]:
        """Return the names of the alerting rules that it has."""
        groups = self._ask("rules", type="alert").get("groups")
        rules = [rule for group in _lists(groups) for rule in _lists(group.get("rules"))]
        return {str(rule.get("name")) for rule in rules if rule.get("type") == "alerting"}

    def _ask(self, path: str, **parameters: str) -> dict[str, Any]:
        where = f"{self.url}/api/v1/{path}"
        try:
            answer = parse_object(self._get(f"{where}?{urlencode(parameters)}"), MAX_VALUES)
        except ValueError as error:
            raise DeployError(str(error), where=where, hint=HINT) from None
        data = answer.get("data")
        if answer.get("status") != "success" or not isinstance(data, dict):
            raise DeployError(f"answered {shown(str(answer.get('error', answer)))}", where=where, hint=HINT)
        return data


def _lists(value: Any) -> list[dict[str, Any]]:
    """Return the objects of what should be a list of them."""
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []
