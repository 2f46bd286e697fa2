# SPDX-License-Identifier: Apache-2.0
"""Client of the Prometheus HTTP API: value of an expression, and names of alerting rules.

https://prometheus.io/docs/prometheus/latest/querying/api/
"""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from typing import Any
from urllib.parse import urlencode

from trtspec.checkpoints.safe_json import parse_object, repr_short
from trtspec.core.errors import DeployError
from trtspec.report.monitoring.fetch import fetch, split

MAX_VALUES = 200_000
HINT = "pass the URL of Prometheus itself, e.g. http://127.0.0.1:9090"


class Prometheus:
    """A Prometheus server at a URL; its responses are not trusted."""

    def __init__(self, url: str, get: Callable[[str], bytes] = fetch) -> None:
        split(url)
        self.url = url.rstrip("/")
        self._get = get

    def value(self, expression: str) -> float | None:
        """Return the current value of an expression, or None if it is missing or not a finite number."""
        result = self._ask("query", query=expression).get("result")
        try:
            value = float(result[0]["value"][1])  # type: ignore[index]
        except (TypeError, LookupError, ValueError):
            return None
        return value if isfinite(value) else None

    def alerts(self) -> set[str]:
        """Return the names of the alerting rules."""
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
            raise DeployError(
                f"returned an error: {repr_short(str(answer.get('error', answer)))}", where=where, hint=HINT
            )
        return data


def _lists(value: Any) -> list[dict[str, Any]]:
    """Return the dictionaries in a value that should be a list of them."""
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []
