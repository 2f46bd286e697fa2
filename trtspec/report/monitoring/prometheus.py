# SPDX-License-Identifier: Apache-2.0
"""Client of the Prometheus HTTP API, and downloads of metrics from untrusted servers.

API: https://prometheus.io/docs/prometheus/latest/querying/api/
"""

from __future__ import annotations

import re
from collections.abc import Callable
from math import isfinite
from typing import Any
from urllib.parse import SplitResult, urlencode, urlsplit

from trtspec.checkpoints.safe_json import parse_object, repr_short
from trtspec.core.errors import DeployError, StepTimeout
from trtspec.core.http import http_request, split_url

TIMEOUT_S = 10.0
MAX_BYTES = 8 << 20
HINT = "check the URL and that the server is running"
SCHEMES = ("http", "https")


def fetch(url: str, timeout_s: float = TIMEOUT_S) -> bytes:
    """Return the body of a GET request of at most MAX_BYTES.

    Raises StepTimeout after `timeout_s` seconds, and DeployError for other failures and for a status other than 200.
    """
    parts, (address, path) = split(url), split_url(url)
    where = f"{address}{parts.path}"
    try:
        with http_request(address, path, timeout_s=timeout_s, max_bytes=MAX_BYTES) as answer:
            body = answer.read()
    except TimeoutError:
        raise StepTimeout(f"no response within {timeout_s:.3g} s", where=where) from None
    except OSError as error:
        raise DeployError(f"cannot be reached: {error or type(error).__name__}", where=where, hint=HINT) from None
    if answer.status != 200:
        raise DeployError(
            f"returned status {answer.status}: {body[:200].decode(errors='replace')!r}", where=where, hint=HINT
        )
    return body


def split(url: str) -> SplitResult:
    """Parse an http(s) URL; raises DeployError if it is invalid or contains credentials."""
    try:
        parts = urlsplit(url)
        is_ours = parts.scheme in SCHEMES and parts.hostname and parts.port != 0
    except ValueError:
        is_ours = False
    if not is_ours or not re.fullmatch("[!-~]+", url):
        raise DeployError(f"{url!r} is not an http(s) URL", hint="e.g. http://127.0.0.1:8002/metrics")
    if parts.username is not None:
        raise DeployError("credentials in a URL are not supported, since URLs are shown", hint="remove them")
    return parts


MAX_VALUES = 200_000
PROMETHEUS_HINT = "pass the URL of Prometheus itself, e.g. http://127.0.0.1:9090"


class Prometheus:
    """Client of the Prometheus server at `url`; responses are validated, because the server is not trusted."""

    def __init__(self, url: str, get: Callable[[str], bytes] = fetch) -> None:
        split(url)
        self.url = url.rstrip("/")
        self._get = get

    def value(self, expression: str) -> float | None:
        """Return the current value of a PromQL expression, or None if it is missing or not finite."""
        result = self._ask("query", query=expression).get("result")
        try:
            value = float(result[0]["value"][1])  # type: ignore[index]
        except (TypeError, LookupError, ValueError):
            return None
        return value if isfinite(value) else None

    def alerts(self) -> set[str]:
        """Return the names of all alerting rules of the server."""
        groups = self._ask("rules", type="alert").get("groups")
        rules = [rule for group in _lists(groups) for rule in _lists(group.get("rules"))]
        return {str(rule.get("name")) for rule in rules if rule.get("type") == "alerting"}

    def _ask(self, path: str, **parameters: str) -> dict[str, Any]:
        where = f"{self.url}/api/v1/{path}"
        try:
            answer = parse_object(self._get(f"{where}?{urlencode(parameters)}"), MAX_VALUES)
        except ValueError as error:
            raise DeployError(str(error), where=where, hint=PROMETHEUS_HINT) from None
        data = answer.get("data")
        if answer.get("status") != "success" or not isinstance(data, dict):
            raise DeployError(
                f"returned an error: {repr_short(str(answer.get('error', answer)))}", where=where, hint=PROMETHEUS_HINT
            )
        return data


def _lists(value: Any) -> list[dict[str, Any]]:
    """Return the dictionaries in a list, or an empty list for any other value."""
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []
