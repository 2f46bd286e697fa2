# SPDX-License-Identifier: Apache-2.0
"""Parser for the Prometheus text format from untrusted sources; it skips malformed lines and limits the input.

Format: https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import isfinite
from typing import NamedTuple

MAX_SAMPLES, MAX_LINE = 100_000, 8192
LINE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)[ \t]*(?:\{(.*)\})?[ \t]+(\S+)(?:[ \t]+-?[0-9]+)?[ \t\r]*")
LABEL = re.compile(r'[ \t]*([a-zA-Z_][a-zA-Z0-9_]*)[ \t]*=[ \t]*"((?:[^"\\]|\\.)*)"[ \t]*(?:,|$)')
ESCAPED = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}


class MetricSample(NamedTuple):
    """One value of a metric, with its labels."""

    labels: Mapping[str, str]
    value: float


def parse_metrics(text: bytes) -> dict[str, list[MetricSample]]:
    """Return the finite samples of each metric name, in input order; at most MAX_SAMPLES lines are read."""
    found: dict[str, list[MetricSample]] = {}
    for number, line in enumerate(text.decode("utf-8", errors="replace").split("\n")):
        if number >= MAX_SAMPLES:
            break
        if len(line) <= MAX_LINE and (match := LINE.fullmatch(line)) and (value := _number(match[3])) is not None:
            found.setdefault(match[1], []).append(MetricSample(_labels(match[2] or ""), value))
    return found


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if isfinite(value) else None


def _labels(text: str) -> dict[str, str]:
    return {
        match[1]: re.sub(r'\\[\\"n]', lambda escape: ESCAPED[escape[0]], match[2]) for match in LABEL.finditer(text)
    }
