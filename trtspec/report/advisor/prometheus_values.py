# SPDX-License-Identifier: Apache-2.0
"""Metric values from two readings of a server's /metrics or from Prometheus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from trtspec.core.prometheus_text import MetricSample
from trtspec.report.monitoring.prometheus import Prometheus

Labels = Mapping[str, str]
Samples = Mapping[str, list[MetricSample]]
WINDOW = "5m"


@dataclass(frozen=True)
class ScrapedMetrics:
    """Two readings of one server, `seconds` apart."""

    before: Samples
    after: Samples
    seconds: float

    def gauge(self, name: str, labels: Labels) -> float | None:
        """Return the mean over both readings of the largest sum of a model."""
        both = [max(_by_model(samples, name, labels).values(), default=None) for samples in (self.before, self.after)]
        known = [value for value in both if value is not None]
        return sum(known) / len(known) if known else None

    def mean(self, name: str, labels: Labels) -> float | None:
        """Return the mean over all series of both readings."""
        values = [each.value for samples in (self.before, self.after) for each in _chosen(samples, name, labels)]
        return sum(values) / len(values) if values else None

    def rate(self, name: str, labels: Labels) -> float | None:
        """Return the lowest positive rate of a model per second, or None if no counter increased."""
        grown = [value for value in self._grown(name, labels).values() if value > 0]
        return min(grown) / self.seconds if grown else None

    def ratio(self, name: str, per: str, labels: Labels) -> float | None:
        """Return the ratio of two increases; if `per` did not increase, the ratio since the server started."""
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
    """Return the sum of the series of each model."""
    sums: Counter[str] = Counter()
    for each in _chosen(samples, name, labels):
        sums[each.labels.get("model", "")] += each.value  # type: ignore[assignment]
    return dict(sums)


@dataclass(frozen=True)
class QueriedMetrics:
    """Values of the last five minutes from Prometheus; `selector` holds label matchers such as `instance="a:8002"`.

    Values are means over servers, since the rules apply to a single server.
    """

    prometheus: Prometheus
    selector: str = ""

    def gauge(self, name: str, labels: Labels) -> float | None:
        """Return the mean over five minutes of the model with the largest value."""
        series = f"avg_over_time({self._series(name, labels)}[{WINDOW}])"
        return self.prometheus.value(f"max(avg by (model) (sum by (model, instance) ({series})))")

    def mean(self, name: str, labels: Labels) -> float | None:
        """Return the mean over all series and five minutes."""
        return self.prometheus.value(f"avg(avg_over_time({self._series(name, labels)}[{WINDOW}]))")

    def rate(self, name: str, labels: Labels) -> float | None:
        """Return the lowest positive rate of a model per second."""
        series = f"rate({self._series(name, labels)}[{WINDOW}])"
        return self.prometheus.value(f"min(avg by (model) (sum by (model, instance) ({series})) > 0)")

    def ratio(self, name: str, per: str, labels: Labels) -> float | None:
        """Return the largest ratio of the rates of a model."""
        above, below = (f"sum by (model) (rate({self._series(each, labels)}[{WINDOW}]))" for each in (name, per))
        return self.prometheus.value(f"max({above} / {below})")

    def _series(self, name: str, labels: Labels) -> str:
        own = [f'{key}="{value}"' for key, value in labels.items()]
        return f"{name}{{{','.join([*own, *filter(None, [self.selector])])}}}"
