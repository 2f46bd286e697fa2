# SPDX-License-Identifier: Apache-2.0
"""The gateway's metrics, checked with Prometheus' linter if it is installed."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest

from tests.report.monitoring.prometheus import promtool
from trtspec.serving.gateway.config import MirrorStats
from trtspec.serving.gateway.metrics import FAMILIES, GatewayMetrics, render_metrics

SHADOWED = MirrorStats(sent=7, failed=2, compared=4, different=1, dropped=3)
SAMPLE = re.compile(r'(\w+)(?:\{(?:\w+="[^"]*",?)*\})? -?[\d.e+-]+')


@pytest.fixture(scope="module")
def exposition() -> str:
    metrics = GatewayMetrics()
    metrics.requests["/v1/completions", 200] += 1
    metrics.rejected["overloaded"] += 1
    metrics.broken["broken"] += 1
    metrics.duration.observe("/v1/completions", 0.2)
    metrics.first_token.observe("/v1/completions", 0.1)
    mirror = SimpleNamespace(mirror_stats=SHADOWED)
    first = SimpleNamespace(route=SimpleNamespace(revision=1, share=90), ended={"ok": 5, "failed": 1}, shadow=None)
    second = SimpleNamespace(route=SimpleNamespace(revision=2, share=10), ended={}, shadow=mirror)
    versions: Any = [first, second]
    return render_metrics(2, versions, [metrics.samples(versions)])


def test_mirror_counters_exist_only_for_the_mirrored_revision(exposition: str) -> None:
    told = [line.split("_shadow_")[1] for line in exposition.splitlines() if line.startswith("trtspec_openai_shadow_")]
    assert told == [
        'requests_total{revision="2",outcome="ok"} 5',
        'requests_total{revision="2",outcome="failed"} 2',
        'requests_total{revision="2",outcome="dropped"} 3',
        'texts_total{revision="2",outcome="same"} 3',
        'texts_total{revision="2",outcome="different"} 1',
    ]


def test_metric_families_have_help_and_type_and_counters_end_in_total(exposition: str) -> None:
    kinds = dict(re.findall(r"^# TYPE (\w+) (\w+)$", exposition, re.MULTILINE))
    assert {*kinds} == {*re.findall(r"^# HELP (\w+) .*[^.]\.$", exposition, re.MULTILINE)}
    assert all((kind == "counter") == name.endswith("_total") for name, kind in kinds.items())
    samples = [line for line in exposition.splitlines() if not line.startswith("#")]
    assert len({line.rsplit(" ", 1)[0] for line in samples}) == len(samples), "duplicate series"
    for line in samples:
        found = SAMPLE.fullmatch(line)
        assert found, line
        assert re.sub(r"_(bucket|sum|count)$", "", found.group(1)) in kinds or found.group(1) in kinds


def test_every_exported_metric_is_declared_with_its_labels(exposition: str) -> None:
    described = dict(re.findall(r"^# HELP (\w+) (.*)$", exposition, re.MULTILINE))
    kinds = dict(re.findall(r"^# TYPE (\w+) (\w+)$", exposition, re.MULTILINE))
    assert {each.name: (each.kind, each.description) for each in FAMILIES} == {
        name: (kinds[name], description) for name, description in described.items()
    }
    declared = {each.name: each.labels for each in FAMILIES}
    for line in exposition.splitlines():
        if not line.startswith("#"):
            name = re.sub(r"_(bucket|sum|count)$", "", line.partition("{")[0].partition(" ")[0])
            labels = tuple(label for label in re.findall(r'(\w+)="', line) if label != "le")
            assert labels == declared[name], line


def test_exposition_passes_the_prometheus_linter(exposition: str) -> None:
    assert promtool("check", "metrics", given=exposition) == ""
