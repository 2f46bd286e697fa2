# SPDX-License-Identifier: Apache-2.0
"""Items about measurements: baseline, profile, tuning and load benchmark."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from trtspec.bench.saved_documents import SavedDocument
from trtspec.report.readiness.artifact_checks import NOT_SPECULATING, SHORT
from trtspec.report.readiness.facts import ReadinessInputs
from trtspec.report.readiness.row import MEASURED, ReadinessItem, done, missing, not_needed

Describe = Callable[[SavedDocument], str]


def baseline(facts: ReadinessInputs) -> ReadinessItem:
    """Check that the target alone was measured."""
    return _row("baseline", facts, facts.of_kind("baseline"), f"trtspec baseline {facts.root}", _tokens_per_s)


def profile(facts: ReadinessInputs) -> ReadinessItem:
    """Check that drafts were profiled."""
    return _draft_row("profile", facts, facts.of_kind("profile"), "trtspec profile RECIPE --prompts FILE --json")


def tune(facts: ReadinessInputs) -> ReadinessItem:
    """Check that draft length and options were tuned."""
    return _draft_row("tuning", facts, facts.of_kind("tune"), "trtspec tune RECIPE --prompts FILE --json")


def load(facts: ReadinessInputs) -> ReadinessItem:
    """Check that speculation was measured under load; a benchmark of single requests does not suffice."""
    command = f"trtspec bench {facts.recipe.name} --concurrency 1,4,16 --json"
    found, alone = facts.of_kind("load"), facts.of_kind("bench")
    if found or not alone or not facts.drafts:
        return _draft_row("load", facts, found, command)
    single = _row("load", facts, alone, command, _speedup)
    return missing("load", f"{single.evidence}, one request at a time", command, alone)


def _nothing(document: SavedDocument) -> str:
    return ""


def _draft_row(
    name: str, facts: ReadinessInputs, found: Sequence[SavedDocument], command: str, describe: Describe = _nothing
) -> ReadinessItem:
    if not facts.drafts:
        return not_needed(name, NOT_SPECULATING)
    return _row(name, facts, found, command, describe)


def _row(
    name: str, facts: ReadinessInputs, found: Sequence[SavedDocument], command: str, describe: Describe
) -> ReadinessItem:
    """Return the row for the first document, which is the best one."""
    if not found:
        return missing(name, "no saved result; pass one with --results FILE", command)
    best = found[0]
    named = f"{best.path.name} {best.sha256[:SHORT]}, {best.time:{MEASURED}}"
    if against := facts.objection(best):
        return missing(name, f"{named}: {against}", command, found)
    details = "; ".join(filter(None, (describe(best), facts.remark(best))))
    return done(name, f"{named}: {details}" if details else named, found)


def _tokens_per_s(document: SavedDocument) -> str:
    return f"{_number(document, 'median_tokens_per_s')} tokens/s"


def _speedup(document: SavedDocument) -> str:
    return f"{_number(document, 'speedup')} times as fast"


def _number(document: SavedDocument, key: str) -> str:
    value = document.values.get(key)
    return f"{value:g}" if isinstance(value, int | float) else "?"


ROWS = (baseline, profile, tune, load)
