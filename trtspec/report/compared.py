# SPDX-License-Identifier: Apache-2.0
"""Sections about the checks: their results, and the two sides that each one compares."""

from __future__ import annotations

from collections.abc import Iterator

from trtspec.bench.speedup import FAILS
from trtspec.bench.verification_report import VerificationCheck
from trtspec.report.documents import ELSEWHERE, ReportInputs
from trtspec.report.judged import contradiction
from trtspec.report.section import Section, Table

# The two sides of each check; gates with limits compare a measurement with the recipe.
SIDES = {
    "files": ("the artifact's files", "the digests of its manifest"),
    "parity": ("greedy text of the converted target", "greedy text of the source checkpoint"),
    "quantized_parity": ("tokens of the quantized target", "tokens of the unquantized source"),
    "lossless": ("text with speculation", "text of the target alone, same engine"),
    "min_acceptance": ("accepted tokens", "drafted tokens"),
    "min_speedup": ("seconds of the target alone", "seconds with speculation, same engine and prompts"),
}


def gates(facts: ReportInputs) -> Iterator[Section]:
    """Yield the checks and the skipped checks."""
    found = facts.verification
    if found is None:
        words = "This artifact has not been verified; run trtspec verify, or trtspec bench NAME --gates."
        yield Section("Gates", words)
        return
    marks = [contradiction(facts, check) for check in found.checks]
    rows = [_row(check, mark) for check, mark in zip(found.checks, marks, strict=True)]
    bad = [number for number, check in enumerate(found.checks) if not check.ok or marks[number]]
    tables = [Table("Checks", ("check", "", "details"), rows, bad=bad)]
    if found.left_out:
        rows_out = [(each.name, each.reason, each.why) for each in found.left_out]
        tables.append(Table("Skipped", ("check", "cause", "reason"), rows_out))
    claims = f"{ELSEWHERE.capitalize()}: these results are from the report shipped with the artifact."
    yield Section("Gates", claims if facts.elsewhere else "", tables=tables)


def _row(check: VerificationCheck, mark: str) -> tuple[str, str, str]:
    """Return the row of a check; `mark` is a contradicting benchmark result, or ""."""
    state = "FAILS" if check.state == FAILS else check.state
    return (
        check.name,
        f"{state}, contradicted" if mark else state,
        f"{check.detail}. But {mark}" if mark else check.detail,
    )


def compared(facts: ReportInputs) -> Iterator[Section]:
    """Yield the comparisons: both sides, the prompts, and the source document."""
    checks = facts.verification.checks if facts.verification else ()
    rows = [_checked(check, elsewhere=facts.elsewhere) for check in checks]
    if bench := facts.bench:
        runs = len(bench.baseline.tokens_per_s)
        on = f"{bench.prompts} prompts, up to {bench.max_tokens} tokens, {runs} alternating runs"
        rows.append(("seconds with speculation", "target alone, same engine and prompts", on, "bench"))
    if profile := facts.profile:
        on = f"{profile.prompts} prompts, {profile.tokens} tokens"
        rows += [(f"drafts of {each.name}", "greedy text of the target", on, "profile") for each in profile.methods]
    if rows:
        columns = ("measured", "compared with", "on", "source")
        yield Section("Comparisons", "", tables=[Table("Comparisons", columns, rows)])


def _checked(check: VerificationCheck, *, elsewhere: bool) -> tuple[str, str, str, str]:
    what, other = SIDES.get(check.name, (check.name, "the recipe's gates"))
    where = {"process": "this process", "server": "the running server"}.get(check.measured_by, "the artifact's files")
    return what, other, where, f"verify: {check.name}{', elsewhere' * elsewhere}"
