# SPDX-License-Identifier: Apache-2.0
"""Scrape configuration of Prometheus for the metrics of deployments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

JOB = "trtspec"  # the rules select this job


def scrape_config(endpoints: Mapping[str, str]) -> dict[str, Any]:
    """Return `scrape_configs` for the metrics URLs by deployment name, which becomes a label."""
    targets = [
        {"targets": [urlsplit(url).netloc], "labels": {"deployment": name}} for name, url in sorted(endpoints.items())
    ]
    return {"scrape_configs": [{"job_name": JOB, "static_configs": targets}]}
