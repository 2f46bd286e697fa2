# SPDX-License-Identifier: Apache-2.0
"""Configuration for monitoring served models with Prometheus and Grafana.

Prometheus gets recording and alerting rules (`rules.yaml`) and a scrape configuration; Grafana gets a dashboard.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

RULES = Path(__file__).with_name("rules.yaml")


def rules_text() -> str:
    """Return the Prometheus rule file as text."""
    return RULES.read_text(encoding="utf-8")


def rules() -> dict[str, Any]:
    """Return the Prometheus rule file as a dictionary with the key `groups`."""
    from trtspec.core.paths import load_package_yaml

    document: dict[str, Any] = load_package_yaml(RULES)
    return document


JOB = "trtspec"  # job name that the rules select


def scrape_config(endpoints: Mapping[str, str]) -> dict[str, Any]:
    """Return Prometheus' `scrape_configs` for metrics URLs by deployment name, which becomes a label."""
    targets = [
        {"targets": [urlsplit(url).netloc], "labels": {"deployment": name}} for name, url in sorted(endpoints.items())
    ]
    return {"scrape_configs": [{"job_name": JOB, "static_configs": targets}]}


WHICH = 'model=~"$model", instance=~"$instance"'
PER_ROW, WIDTH, HEIGHT = 3, 8, 8  # panels per row, and panel size; Grafana has 24 columns
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
SOURCES = {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}
REFRESH = "10s"


@dataclass(frozen=True)
class Panel:
    """A time series panel of the dashboard; `unit` is a Grafana unit, and `queries` are (legend, PromQL) pairs."""

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    description: str = ""


def rate(metric: str, by: str = "model") -> str:
    """Return the PromQL expression for a counter's rate per second, summed by the labels `by`."""
    return f"sum by ({by}) (rate({metric}{{{WHICH}}}[$__rate_interval]))"


def gauge(metric: str) -> str:
    """Return the PromQL expression for a gauge, summed by model."""
    return f"sum by (model) ({metric}{{{WHICH}}})"


def percentiles(metric: str) -> tuple[tuple[str, str], ...]:
    """Return (legend, PromQL) pairs for the 50th, 95th and 99th percentiles of a histogram."""
    buckets = rate(f"{metric}_bucket", "le, model")
    return tuple((f"p{part} {{{{model}}}}", f"histogram_quantile({part / 100}, {buckets})") for part in (50, 95, 99))


ACCEPTED, DRAFTED = rate("trtspec_accepted_tokens_total"), rate("trtspec_drafted_tokens_total")
STEPS = rate("trtspec_decode_steps_total")
AT_POSITION = rate("trtspec_accepted_tokens_by_position_total", "model, position")
QUEUED_US, EXECUTED = rate("nv_inference_queue_duration_us"), rate("nv_inference_exec_count")

PANELS = (
    Panel(
        "Tokens per second",
        "short",
        (
            ("generated, {{model}}", rate("trtspec_generated_tokens_total")),
            ("prompt, {{model}}", rate("trtspec_prompt_tokens_total")),
        ),
    ),
    Panel(
        "Acceptance rate",
        "percentunit",
        (("{{model}}", f"{ACCEPTED} / ({DRAFTED} > 0)"),),
        "Share of verified draft tokens that are accepted. It is low for trees, since all nodes are verified.",
    ),
    Panel(
        "Mean accepted length",
        "short",
        (("{{model}}", f"1 + {ACCEPTED} / {STEPS}"),),
        "Tokens per decode step of the target: accepted draft tokens plus one.",
    ),
    Panel(
        "Acceptance by position",
        "percentunit",
        (("{{model}} at {{position}}", f"{AT_POSITION} / on (model) group_left {STEPS}"),),
        "Share of decode steps that accepted a draft token at this position.",
    ),
    Panel("Time to first token", "s", percentiles("trtspec_time_to_first_token_seconds")),
    Panel("Time per output token", "s", percentiles("trtspec_time_per_output_token_seconds")),
    Panel("Request duration", "s", percentiles("trtspec_request_duration_seconds")),
    Panel("Time in the queue", "s", percentiles("trtspec_queue_seconds")),
    Panel(
        "Running and waiting",
        "short",
        (
            ("running, {{model}}", gauge("trtspec_requests_running")),
            ("waiting, {{model}}", gauge("trtspec_requests_waiting")),
        ),
    ),
    Panel(
        "Requests by finish reason",
        "reqps",
        (("{{finish_reason}}, {{model}}", rate("trtspec_requests_total", "model, finish_reason")),),
    ),
    Panel(
        "Fallbacks to the target alone",
        "ops",
        (
            ("{{reason}}, {{model}}", rate("trtspec_fallbacks_total", "model, reason")),
            ("breaker open, {{model}}", gauge("trtspec_breaker_open")),
        ),
    ),
    Panel(
        "Triton: requests",
        "reqps",
        (
            ("answered, {{model}}", rate("nv_inference_request_success")),
            ("failed: {{reason}}, {{model}}", rate("nv_inference_request_failure", "model, reason")),
        ),
    ),
    Panel("Triton: requests in its queue", "short", (("{{model}}", gauge("nv_inference_pending_request_count")),)),
    Panel("Triton: mean time in its queue", "µs", (("{{model}}", f"{QUEUED_US} / {EXECUTED}"),)),
)


def dashboard() -> dict[str, Any]:
    """Return the Grafana dashboard as JSON data for import; it depends only on the version of trtspec."""
    return {
        "uid": "trtspec",
        "title": "trtspec: speculative decoding",
        "tags": ["trtspec", "triton"],
        "schemaVersion": 39,
        "editable": True,
        "graphTooltip": 1,
        "refresh": REFRESH,
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [SOURCES, _variable("model"), _variable("instance")]},
        "panels": [_panel(number, panel) for number, panel in enumerate(PANELS)],
    }


def _panel(number: int, panel: Panel) -> dict[str, Any]:
    row, column = divmod(number, PER_ROW)
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.description,
        "datasource": DATASOURCE,
        "gridPos": {"h": HEIGHT, "w": WIDTH, "x": column * WIDTH, "y": row * HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {"refId": chr(ord("A") + place), "datasource": DATASOURCE, "expr": query, "legendFormat": legend}
            for place, (legend, query) in enumerate(panel.queries)
        ],
    }


def _variable(label: str) -> dict[str, Any]:
    query = f"label_values(trtspec_requests_total, {label})"
    return {
        "name": label,
        "type": "query",
        "datasource": DATASOURCE,
        "query": {"query": query, "refId": label},
        "definition": query,
        "refresh": 2,
        "sort": 1,
        "includeAll": True,
        "allValue": ".*",
        "multi": True,
        "current": {"text": "All", "value": "$__all"},
    }
