# SPDX-License-Identifier: Apache-2.0
"""Decision on speculation, with one sentence that explains it.

`decide` is a pure function of `Evidence`, which is collected from an artifact, its verification and its benchmarks.
`report`, `bench`, `profile` and `tune` print the decision first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtspec.bench.documents import read_verification
from trtspec.bench.gates import FAILS, FILES, HOLDS, MAX_RUNS, UNDECIDED, VerificationCheck, VerificationReport
from trtspec.bench.speedup import BenchComparison
from trtspec.store.artifact import Manifest, load_manifest

# Recommended actions; "pays": faster, but not verified; "alone": the artifact does not speculate.
SHIP, PAYS, DO_NOT_SHIP, NOT_DECIDED, UNKNOWN, ALONE = "ship", "pays", "do_not_ship", "undecided", "unknown", "alone"
MIN_SPEEDUP, MIN_ACCEPTANCE, LOSSLESS = "min_speedup", "min_acceptance", "lossless"
TARGET = "as fast as the target alone"
Verdict = tuple[str, str]  # a recommended action and its explanation


@dataclass(frozen=True)
class RelativeSpeed:
    """Speed relative to the target alone, with a 95 % interval unless it was measured in a single round."""

    value: float
    low: float | None = None
    high: float | None = None

    def __str__(self) -> str:
        return f"{self.value:.2f} times" + ("" if self.low is None else f" ({self.span})")

    def reaches(self, limit: float) -> bool | None:
        """Return True if the interval is at or above `limit`, False if it is below, and None if it is undecided."""
        if self.low is None or self.high is None:
            return None
        return True if self.low >= limit else False if self.high < limit else None

    @property
    def span(self) -> str:
        """Return the interval as text, or the value if there is only a single round."""
        return f"{self.value:.2f}" if self.low is None or self.high is None else f"{self.low:.2f} to {self.high:.2f}"


@dataclass(frozen=True)
class DraftOption:
    """A speculation method or a draft, with its expected or measured speed-up."""

    name: str
    speedup: RelativeSpeed


@dataclass(frozen=True)
class Evidence:
    """All facts about a recipe's or an artifact's speculation on which the decision is based."""

    method: str
    subject: str = "this draft"  # label in sentences
    speedup: RelativeSpeed | None = None  # over the target alone at `load`
    load: str = "1 request"
    is_expected: bool = False  # True if the speed-up is predicted by a profile
    by_load: Sequence[tuple[float, float]] = ()  # (concurrency, ratio) pairs, ascending
    limit: float | None = None  # the recipe's `min_speedup`
    acceptance: float | None = None
    texts: tuple[int, int] | None = None  # (identical texts, all texts) of a comparison
    must_be_lossless: bool = False
    checks: Sequence[VerificationCheck] = ()
    verified: bool | None = None  # None without a verification
    rivals: Sequence[DraftOption] = ()  # other methods or drafts measured on the same target
    has_baseline: bool = True  # False if speculation was measured without the target alone
    foreign: Sequence[str] = ()  # one phrase for each document of another artifact
    more: str = f"--runs {MAX_RUNS}"  # advice for a more precise measurement
    measure: str = "trtspec bench"  # command that measures the artifact
    check: str = "trtspec verify"  # command that verifies the artifact, or ""

    @property
    def speed_gate(self) -> VerificationCheck | None:
        """Return the check of the gate min_speedup, or None if it was not evaluated."""
        return next((check for check in self.checks if check.name == MIN_SPEEDUP), None)


@dataclass(frozen=True)
class Proposal:
    """The recommendation of `profile` or `tune`; `chosen` is None if the target alone is recommended.

    `best` is the fastest option tried, `own` is the recipe's current option, and `why_alone` is the reason against
    speculation.
    """

    chosen: DraftOption | None
    best: DraftOption | None = None
    own: DraftOption | None = None
    draft_len: int = 0
    load: str = "1 request"
    by_load: Sequence[tuple[float, float]] = ()
    why_alone: str = ""


@dataclass(frozen=True)
class SpeculationDecision:
    """A recommended action and the sentence that explains it."""

    decision: str
    text: str

    def as_dict(self) -> dict[str, str]:
        return {"decision": self.decision, "verdict": self.text}

    @property
    def style(self) -> str:
        """Return the terminal color of the decision."""
        return {SHIP: "green", PAYS: "green", DO_NOT_SHIP: "red", ALONE: ""}.get(self.decision, "yellow")


def decide(found: Evidence | Proposal) -> SpeculationDecision:
    """Return the decision of the first rule that applies."""
    if isinstance(found, Proposal):
        return SpeculationDecision(*_proposed(found))
    rules = (_broken, _alone, _rival, _slower, _contradicted, _missed, _open, _faster, _unmeasured)
    return next(SpeculationDecision(*said) for rule in rules for said in rule(found))


def contradicting_measurement(
    check: VerificationCheck, speedup: RelativeSpeed | None, acceptance: float | None, texts: tuple[int, int] | None
) -> str:
    """Return a description of a benchmark result that contradicts a check, or ""."""
    limit = check.limit if isinstance(check.limit, int | float) else None
    if check.name == MIN_SPEEDUP and speedup and limit is not None:
        above = speedup.value >= limit
        is_against = not above if check.state == HOLDS else check.state == FAILS and speedup.reaches(limit) is True
        return f"bench measured {speedup} {TARGET}" if is_against else ""
    if check.name == MIN_ACCEPTANCE and acceptance is not None and limit is not None:
        return f"bench measured {acceptance:.3f}" if (acceptance >= limit) != check.ok else ""
    if check.name == LOSSLESS and texts and check.ok and texts[0] < texts[1]:
        return f"bench found {texts[0]} of {texts[1]} texts identical"
    return ""


def _refusal(found: Evidence, why: str) -> Verdict:
    return DO_NOT_SHIP, f"Do not ship {found.subject}: {why}."


def _broken(found: Evidence) -> Iterator[Verdict]:
    """Yield a refusal if the artifact is incorrect, whatever its speed."""
    for check in found.checks:
        if check.state == FAILS and not check.name.startswith("min_"):
            yield DO_NOT_SHIP, f"Do not ship this artifact: {check.name} fails: {check.detail}."
    if found.texts and found.must_be_lossless and found.texts[0] < found.texts[1]:
        why = f"{_identical(found.texts)}, but the recipe requires all of them"
        yield _refusal(found, why)


def _identical(texts: tuple[int, int]) -> str:
    return f"only {texts[0]} of {texts[1]} texts are identical with and without speculation"


def _alone(found: Evidence) -> Iterator[Verdict]:
    if found.method == "none":
        yield ALONE, "This artifact does not speculate: it runs the target alone."


def _rival(found: Evidence) -> Iterator[Verdict]:
    """Yield a refusal if another option is significantly faster."""
    best = max(found.rivals, key=lambda each: each.speedup.value, default=None)
    own = found.speedup
    if best is None or own is None or best.speedup.reaches(1.0) is not True or best.speedup.low is None:
        return
    if best.speedup.low > (own.value if own.high is None else own.high):
        yield _refusal(found, f"{best.name} is {best.speedup} {TARGET} here, {found.subject} {own}")


def _slower(found: Evidence) -> Iterator[Verdict]:
    if found.speedup and found.speedup.reaches(1.0) is False:
        yield _refusal(found, f"it {_is(found)} {found.speedup} {TARGET} at {found.load}{_tail(found.by_load)}")


def _contradicted(found: Evidence) -> Iterator[Verdict]:
    """Yield a verdict if the gate min_speedup and a benchmark have opposite results."""
    gate = found.speed_gate
    if found.is_expected or not (gate and found.speedup and isinstance(gate.limit, int | float)):
        return
    reached, then = found.speedup.reaches(gate.limit), f"the gate {MIN_SPEEDUP} ({gate.limit:g}) {gate.state}"
    text = f"{then} with {_number(gate)}, but bench measured {found.speedup}"
    if gate.state == HOLDS and reached is False:
        yield _refusal(found, text)
    if gate.state == FAILS and reached is True:
        yield NOT_DECIDED, f"Not decided: {text}; run {found.check} again."


def _missed(found: Evidence) -> Iterator[Verdict]:
    if failed := [f"{check.name} fails: {check.detail}" for check in found.checks if check.state == FAILS]:
        yield _refusal(found, "; ".join(failed))
    if found.limit and found.speedup and found.speedup.reaches(found.limit) is False:
        yield _refusal(found, f"it {_is(found)} {found.speedup} {TARGET}, but the gate requires {found.limit:g}")


def _open(found: Evidence) -> Iterator[Verdict]:
    """Yield "undecided" if the interval of the speed-up includes its limit, or if a check is undecided."""
    wanted = max(1.0, found.limit or 0.0)
    if found.speedup and found.speedup.reaches(wanted) is None:
        expected = "expected to be " if found.is_expected else ""
        said = f"Not decided: {expected}{found.speedup.span} times {TARGET} at {found.load}"
        if found.speedup.low is None:
            said += ", from one round without an interval"
        elif found.limit and wanted == found.limit:
            said += f", but the gate requires {wanted:g}"
        else:
            said += ", so it may be slower"
        gate = found.speed_gate  # the gate may hold although the benchmark's value is below its limit
        if not found.is_expected and gate and gate.state == HOLDS and found.speedup.value < wanted:
            said += f" (the gate held with {_number(gate)})"
        yield NOT_DECIDED, f"{said}; measure again with {found.more}."
    for check in found.checks:
        if check.state == UNDECIDED and not found.speedup:
            text = f"Not decided: {check.name}: {check.detail}; run {found.check} again with {found.more}."
            yield NOT_DECIDED, text


def _faster(found: Evidence) -> Iterator[Verdict]:
    """Yield a positive verdict if a speed-up is known; the earlier rules have excluded one below its limit."""
    undecided = [check.name for check in found.checks if check.state == UNDECIDED]
    but = f"; {', '.join(undecided)} is undecided in the verification" if undecided else ""
    if found.texts and found.texts[0] < found.texts[1]:
        but += f"; {_identical(found.texts)}"
    if found.speedup:
        said = f"{found.speedup} {TARGET} at {found.load}{_tail(found.by_load)}{but}"
        if found.is_expected:
            yield PAYS, f"It should pay: expected to be {said}; measure the artifact with: {found.measure}."
        elif found.verified and not but:
            yield SHIP, f"Ship it: {said}."
        else:
            unverified = "" if found.verified or not found.check else f"; not verified yet, run: {found.check}"
            yield PAYS, f"It pays: {said}{unverified}."
    gate = found.speed_gate
    if gate and gate.state == HOLDS and found.verified:
        said = f"the gate {MIN_SPEEDUP} holds with {_number(gate)} {TARGET} at 1 request{but}."
        yield (PAYS, f"It pays: {said}") if but else (SHIP, f"Ship it: {said}")


def _unmeasured(found: Evidence) -> Iterator[Verdict]:
    unknown = f"Unknown whether {found.subject} pays"
    if not found.has_baseline:
        text = f"{unknown}: the target alone was not measured; give a server without speculation with --baseline."
        yield UNKNOWN, text
    held = "; its checks pass" if found.verified else "" if found.verified is None else "; some of its checks fail"
    why = f": {' and '.join(found.foreign)}" if found.foreign else ""
    yield UNKNOWN, f"{unknown}: it was not measured{why}{held}; run: {found.measure}."


def _proposed(found: Proposal) -> Verdict:
    chosen, own, best = found.chosen, found.own, found.best
    if chosen is None:
        if best is None:
            return ALONE, "Do not speculate: none of the options could be measured."
        text = f"Do not speculate: the best option tried, {best.name}, is expected to be {best.speedup} {TARGET}"
        return DO_NOT_SHIP, f"{text} at {found.load}, but {found.why_alone}; use the target alone."
    long = f", draft_len {found.draft_len}" if found.draft_len else ""
    said = f"{chosen.speedup} {TARGET} at {found.load}{long}{_tail(found.by_load)}"
    if own is None or own.name == chosen.name:
        return PAYS, f"Use {chosen.name}: it is expected to be {said}."
    if own.speedup.reaches(1.0) is True:
        return PAYS, f"Use {chosen.name} instead of {own.name}: {said}; {own.name} is {own.speedup}."
    return DO_NOT_SHIP, f"Do not ship {own.name}: it is expected to be {own.speedup} {TARGET}, {chosen.name} {said}."


def _tail(by_load: Sequence[tuple[float, float]]) -> str:
    """Return a clause on the measured loads at which speculation does not pay; "" for a single load."""
    pays = [load for load, ratio in by_load if ratio > 1.0]
    slow = [load for load, ratio in by_load if ratio <= 1.0]
    if len(by_load) < 2:
        return ""
    if not slow:
        return f"; it pays up to {by_load[-1][0]:g} concurrent requests, the highest load measured"
    if not pays:
        return "; it does not pay at any measured load"
    if max(pays) < min(slow):
        return f"; it does not pay from {min(slow):g} concurrent requests"
    if max(slow) < min(pays):
        return f"; it pays from {min(pays):g} concurrent requests"
    return f"; it does not pay at {', '.join(f'{load:g}' for load in slow)} concurrent requests"


def _is(found: Evidence) -> str:
    return "is expected to be" if found.is_expected else "is"


def _number(gate: VerificationCheck) -> str:
    return f"{gate.value:.2f} times" if isinstance(gate.value, int | float) else "an unknown value"


def artifact_facts(root: Path | None, found: VerificationReport | None = None) -> dict[str, Any]:
    """Return the evidence from an artifact and its verification; without an artifact, only a label.

    `found` is the current verification; checks that are missing in it are taken from the saved verification.
    """
    if root is None:
        return {"method": "unknown", "subject": "speculation", "check": ""}
    manifest, earlier = load_manifest(root), read_verification(root)
    report = found.after(earlier) if found else earlier
    return manifest_facts(manifest, root) | verification_facts(report)


def manifest_facts(manifest: Manifest, root: Path) -> dict[str, Any]:
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
    """Return the evidence from a verification; `verified` is None unless the artifact's files were checked too."""
    if report is None:
        return {}
    is_whole = any(check.name == FILES for check in report.checks)
    return {"checks": report.checks, "verified": report.ok if is_whole else None}


def comparison_facts(comparison: BenchComparison) -> dict[str, Any]:
    """Return the evidence from a benchmark with one request at a time."""
    if not comparison.ratios:
        return {"has_baseline": False}
    speedup, drafts = comparison.speedup, comparison.speculative.stats
    return {
        "speedup": RelativeSpeed(speedup.median, speedup.low, speedup.high),
        "texts": (comparison.identical_texts, comparison.prompts),
        "acceptance": drafts.acceptance_rate if drafts.drafted else None,
        "more": f"--runs {MAX_RUNS}" if comparison.runs < MAX_RUNS else "more prompts (--prompts FILE)",
    }


def load_facts(points: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the evidence from the points of a load test; the speed-up at the lowest load decides."""
    judged = [(point["load"], point["speedup"]) for point in points if point["speedup"]]
    if not judged:
        return {"has_baseline": False}
    load, ratio = judged[0]
    return {
        "speedup": RelativeSpeed(ratio["ratio"], ratio["low"], ratio["high"]),
        "load": describe_load(load),
        "by_load": [(load["concurrency"], ratio["ratio"]) for load, ratio in judged if load.get("concurrency")],
        "more": "more --max-rounds or --requests",
    }


def describe_load(load: Mapping[str, Any]) -> str:
    """Return a label for a load, such as "4 concurrent requests"."""
    if many := load.get("concurrency"):
        return "1 request" if many == 1 else f"{many:g} concurrent requests"
    return f"{load['requests_per_s']:g} requests/s"


def evidence(*facts: Mapping[str, Any]) -> Evidence:
    """Combine facts into Evidence; later facts override earlier ones with the same key."""
    return Evidence(**{key: value for each in facts for key, value in each.items()})
