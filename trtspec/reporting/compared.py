# SPDX-License-Identifier: Apache-2.0
"""The sections about what was checked and measured: gates, and what each number compares with what."""

from __future__ import annotations

from collections.abc import Iterator

from trtspec.measure.report import Check
from trtspec.reporting.documents import ELSEWHERE, Facts
from trtspec.reporting.section import Section, Table

# What checks hold against what; those of limits compare a measurement with the recipe.
SIDES = {
    "files": ("the artifact's files", "the digests of its manifest"),
    "parity": ("greedy text of the converted target", "that of the source checkpoint"),
    "quantized_parity": ("tokens of the quantized target", "those of the unquantized source"),
    "lossless": ("text with speculation", "text of the target alone, same engine"),
    "min_acceptance": ("accepted tokens", "drafted tokens"),
    "min_speedup": ("seconds of the target alone", "seconds with speculation, same engine and prompts"),
}


def gates(facts: Facts) -> Iterator[Section]:
    """Yield the checks and what was left out."""
    found = facts.verification
    if found is None:
        words = "Nobody has verified this artifact as it lies here: trtspec verify, or trtspec bench NAME --gates."
        yield Section("Gates", words)
        return
    rows = [(check.name, "holds" if check.ok else "FAILS", check.detail) for check in found.checks]
    tables = [Table("Checks", ("check", "", "what was found"), rows)]
    if found.left_out:
        rows_out = [(each.name, each.reason, each.why) for each in found.left_out]
        tables.append(Table("Left out", ("check", "because of", "why"), rows_out))
    claims = f"{ELSEWHERE.capitalize()}: these are the claims of the report that came with it."
    yield Section("Gates", claims if facts.elsewhere else "", tables=tables)


def compared(facts: Facts) -> Iterator[Section]:
    """Yield what was compared with what, on what, and which document says so."""
    checks = facts.verification.checks if facts.verification else ()
    rows = [_checked(check, elsewhere=facts.elsewhere) for check in checks]
    if bench := facts.bench:
        on = (
            f"{bench.prompts} prompts, up to {bench.max_tokens} tokens, {len(bench.baseline.tokens_per_s)} runs in turn"
        )
        rows.append(("seconds with speculation", "target alone, same engine and prompts", on, "bench"))
    if profile := facts.profile:
        on = f"{profile.prompts} prompts, {profile.tokens} tokens"
        rows += [(f"drafts of {each.name}", "greedy text of the target", on, "profile") for each in profile.methods]
    if rows:
        columns = ("what", "compared with", "on", "said by")
        yield Section("What was compared", "", tables=[Table("Comparisons", columns, rows)])


def _checked(check: Check, *, elsewhere: bool) -> tuple[str, str, str, str]:
    what, other = SIDES.get(check.name, (check.name, "the recipe's gates"))
    where = {"process": "this process", "server": "the running server"}.get(check.measured_by, "the artifact's files")
    return what, other, where, f"verify: {check.name}{', elsewhere' * elsewhere}"
