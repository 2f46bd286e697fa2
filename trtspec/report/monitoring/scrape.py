# SPDX-License-Identifier: Apache-2.0
"""What tells Prometheus where the metrics of deployments are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

JOB = "trtspec"  # which the rules ask for


def scrape_config(endpoints: Mapping[str, str]) -> dict[str, Any]:
    """Return `scrape_configs` for metrics' addresses by deployment; each series is labelled with that."""
    targets = [
        {"targets": [urlsplit(url).netloc], "labels": {"deployment": name}} for name, url in sorted(endpoints.items())
    ]
    return {"scrape_configs": [{"job_name": JOB, "static_configs": targets}]}
