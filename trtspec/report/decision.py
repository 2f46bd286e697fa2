# SPDX-License-Identifier: Apache-2.0
"""The decision that a report begins with, from the documents that match its artifact."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath
from typing import Any

from trtspec.bench.decision import (
    DraftOption,
    Evidence,
    RelativeSpeed,
    SpeculationDecision,
    contradicting_measurement,
    decide,
    evidence,
    is_closed_loop,
    load_facts,
    manifest_facts,
    verification_facts,
)
from trtspec.bench.gates import MAX_RUNS, VerificationCheck
from trtspec.planning.documents import BatchSpeedup, ProfiledCandidate
from trtspec.report.documents import ELSEWHERE, ReportInputs


def report_decision(facts: ReportInputs) -> SpeculationDecision:
    """Return the verdict that a report begins with."""
    return decide(collect_evidence(facts))


def collect_evidence(facts: ReportInputs) -> Evidence:
    """Return the evidence on the artifact's speculation and on other drafts for its target."""
    return evidence(
        manifest_facts(facts.manifest, facts.root),
        verification_facts(None if facts.elsewhere else facts.verification),
        _profile_evidence(facts),
        _load_evidence(facts),
        _bench_evidence(facts),
        {"rivals": _rivals(facts), "foreign": mismatched_documents(facts)},
    )


def verification_summary(facts: ReportInputs) -> str:
    """Return a summary of the verification: the failed, undecided and passed checks."""
    found = facts.verification
    if found is None:
        return "not verified"
    if facts.elsewhere:
        return ELSEWHERE
    states = ("fails", "undecided", "holds")
    names = {state: [check.name for check in found.checks if check.state == state] for state in states}
    words = {"fails": "does not hold", "undecided": "undecided", "holds": "verified"}
    return "; ".join(f"{words[state]}: {', '.join(names[state])}" for state in states if names[state])


def contradiction(facts: ReportInputs, check: VerificationCheck) -> str:
    """Return the benchmark result that contradicts a check, or ""."""
    bench = facts.counted("bench")
    if bench is None:
        return ""
    low, high = bench.speedup_interval
    texts = (bench.identical_texts, bench.prompts)
    return contradicting_measurement(
        check, RelativeSpeed(bench.speedup, low, high), bench.speculative.acceptance_rate, texts
    )


def mismatched_documents(facts: ReportInputs) -> list[str]:
    """Return descriptions of the documents that do not match the artifact, with the reasons."""
    return [f"{each.name} is {each.against}" for each in facts.sources if each.against]


def matching_candidate(facts: ReportInputs) -> ProfiledCandidate | None:
    """Return the profiled candidate that the artifact uses, or None if it is not unique."""
    if not (profile := facts.counted("profile")):
        return None
    recipe = facts.manifest.recipe
    of_method = [each for each in profile.methods if each.method == recipe.speculation.method and each.best]
    if len(of_method) > 1 and "draft" in recipe.models:
        draft = PurePath(recipe.models["draft"].model).name
        of_method = [each for each in of_method if each.draft and PurePath(each.draft).name == draft]
    return of_method[0] if len(of_method) == 1 else None


def _profile_evidence(facts: ReportInputs) -> dict[str, Any]:
    own = matching_candidate(facts)
    if own is None:
        return {}
    by_load = [(float(each.batch), each.speedup) for each in own.best]
    first = own.best[0]
    load = "1 request" if first.batch == 1 else f"{first.batch} requests at once"
    more = "more prompts (profile --num-prompts N)"
    return {"speedup": _ratio(first), "is_expected": True, "load": load, "by_load": by_load, "more": more}


def _load_evidence(facts: ReportInputs) -> dict[str, Any]:
    if not (found := facts.counted("load")):
        return {}
    points = [each.model_dump() for each in found.points]
    return load_facts(points) | {"is_expected": False} if any(each["speedup"] for each in points) else {}


def _bench_evidence(facts: ReportInputs) -> dict[str, Any]:
    if not (found := facts.counted("bench")):
        return {}
    drafts = found.speculative.acceptance_rate
    load = facts.counted("load")
    points = [each.model_dump() for each in load.points] if load else []
    return {
        "speedup": RelativeSpeed(found.speedup, *found.speedup_interval),
        "load": "1 request",
        "is_expected": False,
        "by_load": [
            (float(each["load"]["concurrency"]), each["speedup"]["ratio"])
            for each in points
            if each["speedup"] and is_closed_loop(each)
        ],
        "texts": (found.identical_texts, found.prompts),
        "acceptance": drafts or None,
        "more": f"--runs {MAX_RUNS}",
    }


def _rivals(facts: ReportInputs) -> Sequence[DraftOption]:
    """Return the profiled candidates that are significantly faster than the artifact's candidate."""
    own, profile = matching_candidate(facts), facts.counted("profile")
    others = [each for each in profile.methods if each is not own and each.best] if profile else []
    return [
        DraftOption(each.name, _ratio(each.best[0]))
        for each in others
        if own is None or each.best[0].interval[0] > own.best[0].interval[1]
    ]


def _ratio(found: BatchSpeedup) -> RelativeSpeed:
    return RelativeSpeed(found.speedup, *found.interval)
