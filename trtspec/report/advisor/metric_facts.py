# SPDX-License-Identifier: Apache-2.0
"""Facts for the advisor from a server's metrics, scraped directly or queried from Prometheus; see `metrics.yaml`."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from trtspec.core.errors import TrtspecError
from trtspec.core.paths import load_package_yaml
from trtspec.core.prometheus_text import MetricSample, parse_metrics
from trtspec.report.advisor.advice import AdvisorFact
from trtspec.report.monitoring.prometheus import Prometheus, fetch

Labels = Mapping[str, str]
Samples = Mapping[str, list[MetricSample]]
WINDOW = "5m"


@dataclass(frozen=True)
class ScrapedMetrics:
    """Two readings of one server's metrics, taken `seconds` apart."""

    before: Samples
    after: Samples
    seconds: float

    def gauge(self, name: str, labels: Labels) -> float | None:
        """Return the largest value of a gauge over all models, averaged over both readings."""
        both = [max(_by_model(samples, name, labels).values(), default=None) for samples in (self.before, self.after)]
        known = [value for value in both if value is not None]
        return sum(known) / len(known) if known else None

    def mean(self, name: str, labels: Labels) -> float | None:
        """Return the mean of a metric over all its series in both readings."""
        values = [each.value for samples in (self.before, self.after) for each in _chosen(samples, name, labels)]
        return sum(values) / len(values) if values else None

    def rate(self, name: str, labels: Labels) -> float | None:
        """Return the lowest positive rate of a counter per second over all models, or None if it did not increase."""
        grown = [value for value in self._grown(name, labels).values() if value > 0]
        return min(grown) / self.seconds if grown else None

    def ratio(self, name: str, per: str, labels: Labels) -> float | None:
        """Return the largest ratio, over all models, of the increases of two counters between the readings.

        If `per` did not increase, the counts since the server started are used.
        """
        for counts in (self._grown, self._counted):
            above, below = counts(name, labels), counts(per, labels)
            found = [above.get(model, 0.0) / number for model, number in below.items() if number > 0]
            if found:
                return max(found)
        return None

    def _counted(self, name: str, labels: Labels) -> dict[str, float]:
        return _by_model(self.after, name, labels)

    def _grown(self, name: str, labels: Labels) -> dict[str, float]:
        before = _by_model(self.before, name, labels)
        return {model: value - before.get(model, 0.0) for model, value in self._counted(name, labels).items()}


def _chosen(samples: Samples, name: str, labels: Labels) -> list[MetricSample]:
    return [each for each in samples.get(name, ()) if labels.items() <= each.labels.items()]


def _by_model(samples: Samples, name: str, labels: Labels) -> dict[str, float]:
    """Return the sum of a metric's series for each model."""
    sums: Counter[str] = Counter()
    for each in _chosen(samples, name, labels):
        sums[each.labels.get("model", "")] += each.value  # type: ignore[assignment]
    return dict(sums)


@dataclass(frozen=True)
class QueriedMetrics:
    """Metrics of the last five minutes (WINDOW) from Prometheus, averaged over servers.

    `selector` contains additional label matchers such as `instance="a:8002"`. Values are averaged, because the rules
    apply to a single server.
    """

    prometheus: Prometheus
    selector: str = ""

    def gauge(self, name: str, labels: Labels) -> float | None:
        """Return the largest value of a gauge over all models, averaged over WINDOW."""
        series = f"avg_over_time({self._series(name, labels)}[{WINDOW}])"
        return self.prometheus.value(f"max(avg by (model) (sum by (model, instance) ({series})))")

    def mean(self, name: str, labels: Labels) -> float | None:
        """Return the mean of a metric over all its series and WINDOW."""
        return self.prometheus.value(f"avg(avg_over_time({self._series(name, labels)}[{WINDOW}]))")

    def rate(self, name: str, labels: Labels) -> float | None:
        """Return the lowest positive rate of a counter per second over all models."""
        series = f"rate({self._series(name, labels)}[{WINDOW}])"
        return self.prometheus.value(f"min(avg by (model) (sum by (model, instance) ({series})) > 0)")

    def ratio(self, name: str, per: str, labels: Labels) -> float | None:
        """Return the largest ratio, over all models, of the rates of two counters."""
        above, below = (f"sum by (model) (rate({self._series(each, labels)}[{WINDOW}]))" for each in (name, per))
        return self.prometheus.value(f"max({above} / {below})")

    def _series(self, name: str, labels: Labels) -> str:
        own = [f'{key}="{value}"' for key, value in labels.items()]
        return f"{name}{{{','.join([*own, *filter(None, [self.selector])])}}}"


MetricReader = ScrapedMetrics | QueriedMetrics  # all methods return None if the metric is missing


@dataclass(frozen=True)
class MetricSource:
    """An entry of `metrics.yaml`: one way to compute a fact from the metrics of an inference server.

    Exactly one of `gauge`, `mean`, `rate` and `ratio` names a metric. The fact is its value times `times` plus `plus`.
    The entry applies only if the ratio of `where` to `per` is positive.
    """

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
        """Return the value of the fact, or None if its metrics are unavailable."""
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
    """Return the entries of `metrics.yaml` for each fact, in order of preference."""
    found = load_package_yaml(Path(__file__).with_name("metrics.yaml"))
    return {name: tuple(MetricSource(**each) for each in entries) for name, entries in found.items()}


def measured_facts(numbers: MetricReader, source: str) -> dict[str, AdvisorFact]:
    """Return the available facts; a value of 0 is accepted only for gpu_utilization.

    Raises TrtspecError if no fact is available.
    """
    found = {}
    for name, entries in metric_sources().items():
        values = (entry.of(numbers) for entry in entries)
        value = next((value for value in values if value is not None), None)
        if value is not None and (value > 0 or name == "gpu_utilization"):
            found[name] = AdvisorFact(value, source)
    if not found:
        hint = "the server must be busy; docs/advise.md lists the supported metrics"
        raise TrtspecError("no known metrics found", where=source, hint=hint)
    return found


def scrape(url: str, seconds: float, get: Callable[[str], bytes] = fetch) -> dict[str, AdvisorFact]:
    """Return the facts from two readings of a server's metrics endpoint, taken `seconds` apart."""
    before, started = parse_metrics(get(url)), time.monotonic()
    time.sleep(seconds)
    after = parse_metrics(get(url))
    return measured_facts(ScrapedMetrics(before, after, time.monotonic() - started), url)
