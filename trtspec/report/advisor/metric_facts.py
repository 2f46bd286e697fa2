# SPDX-License-Identifier: Apache-2.0
"""Facts from the metrics of a running server, scraped or queried from Prometheus, as defined in `metrics.yaml`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Protocol

from trtspec.core.errors import TrtspecError
from trtspec.core.package_data import load_package_yaml
from trtspec.core.prometheus_text import parse_metrics
from trtspec.report.advisor.prometheus_values import ScrapedMetrics
from trtspec.report.advisor.questions import AdvisorFact
from trtspec.report.monitoring.fetch import fetch

NONE_KNOWN = "no known metrics found"


class MetricReader(Protocol):
    """Source of metric values; each method returns None if the metric is missing."""

    def gauge(self, name: str, labels: Mapping[str, str]) -> float | None:
        """Return the sum over the series of the model with the largest sum."""

    def mean(self, name: str, labels: Mapping[str, str]) -> float | None:
        """Return the mean over the series."""

    def rate(self, name: str, labels: Mapping[str, str]) -> float | None:
        """Return the rate of a counter per second, of the model with the lowest rate."""

    def ratio(self, name: str, per: str, labels: Mapping[str, str]) -> float | None:
        """Return the increase of a counter per increase of the counter `per`."""


@dataclass(frozen=True)
class MetricSource:
    """An entry of `metrics.yaml`."""

    gauge: str = ""
    mean: str = ""
    rate: str = ""
    ratio: str = ""
    per: str = ""
    where: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    times: float = 1
    plus: float = 0

    def of(self, numbers: MetricReader) -> float | None:
        """Return the value of the entry, or None if it is unavailable."""
        if self.where and not numbers.ratio(self.where, self.per, self.labels):
            return None
        if self.ratio:
            value = numbers.ratio(self.ratio, self.per, self.labels)
        else:
            read = numbers.gauge if self.gauge else numbers.mean if self.mean else numbers.rate
            value = read(self.gauge or self.mean or self.rate, self.labels)
        return None if value is None else value * self.times + self.plus


@cache
def metric_sources() -> dict[str, tuple[MetricSource, ...]]:
    """Return the entries for each fact, in order of preference."""
    found = load_package_yaml(Path(__file__).with_name("metrics.yaml"))
    return {name: tuple(MetricSource(**each) for each in entries) for name, entries in found.items()}


def measured_facts(numbers: MetricReader, source: str) -> dict[str, AdvisorFact]:
    """Return the facts that are available; TrtspecError if none is. Zeros count only for gpu_utilization."""
    found = {}
    for name, entries in metric_sources().items():
        values = (entry.of(numbers) for entry in entries)
        value = next((value for value in values if value is not None), None)
        if value is not None and (value > 0 or name == "gpu_utilization"):
            found[name] = AdvisorFact(value, source)
    if not found:
        raise TrtspecError(
            NONE_KNOWN, where=source, hint="the server must be busy; docs/advise.md lists the supported metrics"
        )
    return found


def scrape(url: str, seconds: float, get: Callable[[str], bytes] = fetch) -> dict[str, AdvisorFact]:
    """Return the facts from two readings of a server's /metrics, `seconds` apart."""
    before, started = parse_metrics(get(url)), time.monotonic()
    time.sleep(seconds)
    after = parse_metrics(get(url))
    return measured_facts(ScrapedMetrics(before, after, time.monotonic() - started), url)
