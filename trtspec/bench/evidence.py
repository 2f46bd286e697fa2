# SPDX-License-Identifier: Apache-2.0
"""Collect the evidence for `verdict_of` from an artifact and its benchmark results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trtspec.bench.bench import BenchComparison
from trtspec.bench.speedup import MAX_RUNS
from trtspec.bench.verdict import Evidence, RelativeSpeed
from trtspec.bench.verification_report import FILES, VerificationReport, read_verification
from trtspec.store.manifest import Manifest, load_manifest


def artifact_facts(root: Path | None, found: VerificationReport | None = None) -> dict[str, Any]:
    """Return the facts about an artifact and its verification; without an artifact, only its label.

    `found` is the current verification; checks that it lacks are taken from the saved one.
    """
    if root is None:
        return {"method": "unknown", "subject": "speculation", "check": ""}
    manifest, earlier = load_manifest(root), read_verification(root)
    report = found.after(earlier) if found else earlier
    return manifest_facts(manifest, root) | verification_facts(report)


def manifest_facts(manifest: Manifest, root: Path) -> dict[str, Any]:
    """Return the facts from a manifest."""
    recipe = manifest.recipe
    return {
        "method": recipe.speculation.method,
        "subject": "this draft" if "draft" in recipe.models else recipe.speculation.method,
        "limit": recipe.gates.min_speedup,
        "must_be_lossless": recipe.gates.lossless,
        "measure": f"trtspec bench {root}",
        "check": f"trtspec verify {root}",
    }


def verification_facts(report: VerificationReport | None) -> dict[str, Any]:
    """Return the facts from a verification; one without a file check covers only the gates."""
    if report is None:
        return {}
    is_whole = any(check.name == FILES for check in report.checks)
    return {"checks": report.checks, "verified": report.ok if is_whole else None}


def comparison_facts(comparison: BenchComparison) -> dict[str, Any]:
    """Return the facts from a benchmark with one request at a time."""
    more = f"--runs {MAX_RUNS}" if comparison.runs < MAX_RUNS else "more prompts (--prompts FILE)"
    if not comparison.ratios:
        return {"has_baseline": False}
    speedup = comparison.speedup
    return {
        "speedup": RelativeSpeed(speedup.median, speedup.low, speedup.high),
        "texts": (comparison.identical_texts, comparison.prompts),
        "acceptance": comparison.speculative.stats.acceptance_rate if comparison.speculative.stats.drafted else None,
        "more": more,
    }


def load_facts(points: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the facts from the points of a load benchmark; the lowest load decides."""
    judged = [point for point in points if point["speedup"]]
    if not judged:
        return {"has_baseline": False}
    first = judged[0]
    ratio = first["speedup"]
    closed = [(point["load"]["concurrency"], point["speedup"]["ratio"]) for point in judged if is_closed_loop(point)]
    return {
        "speedup": RelativeSpeed(ratio["ratio"], ratio["low"], ratio["high"]),
        "load": describe_load(first["load"]),
        "by_load": closed,
        "more": "more --max-rounds or --requests",
    }


def is_closed_loop(point: Mapping[str, Any]) -> bool:
    """Return whether a point has a fixed concurrency."""
    return bool(point["load"].get("concurrency"))


def describe_load(load: Mapping[str, Any]) -> str:
    """Return a readable label for a load, e.g. "4 concurrent requests"."""
    if many := load.get("concurrency"):
        return "1 request" if many == 1 else f"{many:g} concurrent requests"
    return f"{load['requests_per_s']:g} requests/s"


def evidence(*facts: Mapping[str, Any]) -> Evidence:
    """Combine facts into one Evidence; later facts override earlier ones."""
    return Evidence(**{key: value for each in facts for key, value in each.items()})
