# SPDX-License-Identifier: Apache-2.0
"""Gates of a recipe and check results: types, names, evaluation, and the policy for undecided gates.

This module neither measures nor reads files; `verify.py` does both.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from trtspec.bench.speedup import ENOUGH, BenchComparison, Speedup
from trtspec.core.errors import GateNotMet, TrtspecError, VerificationFailed
from trtspec.core.registry import did_you_mean

if TYPE_CHECKING:
    from trtspec.recipe.resolve import ResolvedGates, ResolvedRecipe

GATES = ("lossless", "min_acceptance", "min_speedup", "quantized_parity")
HOLDS, FAILS, UNDECIDED = "holds", "fails", "undecided"  # states of a check
PROCESS, SERVER = "process", "server"  # places of measurement
# Reasons for a skipped check: user request, needs the running server, not reported by the engine, source missing.
ON_REQUEST, NEEDS_SERVER, NOT_REPORTED, NO_SOURCE = "request", "server", "engine", "source"
FILES = "files"  # name of the check of the artifact's files, which `bench --gates` does not run
MAX_RUNS = 5  # maximum runs while a speed-up is undecided
FAIL, PASS = "fail", "pass"  # policies for undecided gates
POLICY = "TRTSPEC_UNDECIDED"  # environment variable that --undecided sets for this process and its children
NEEDS_BASELINE = "the engine cannot switch drafting off; give a server without speculation with --baseline NAME-or-URL"

Scalar = bool | int | float | str | None


@dataclass(frozen=True)
class VerificationCheck:
    """One check and its result: `value` is compared with `limit`.

    `gate` is the gate of the recipe that requires the check, or "". `measured_by` is "process", "server" or "". `state`
    is "holds", "fails" or "undecided"; `ok` of an undecided check depends on the policy. `seconds` is the duration;
    gates that are decided by one measurement share its time.
    """

    name: str
    ok: bool
    value: Scalar
    limit: Scalar
    detail: str
    gate: str = ""
    measured_by: str = ""
    state: str = ""
    seconds: float = 0.0

    def __post_init__(self) -> None:
        if self.state not in (HOLDS, FAILS, UNDECIDED):
            object.__setattr__(self, "state", HOLDS if self.ok else FAILS)


@dataclass(frozen=True)
class SkippedCheck:
    """A skipped check; `reason` is "request", "server", "engine" or "source", and `why` explains it to users."""

    name: str
    reason: str
    why: str


@dataclass(frozen=True)
class VerificationReport:
    """All checks of an artifact, its acceptance rule, and the SHA-256 of its manifest.

    `speedup` is the speed-up measured on the engine that serves the artifact, and `warnings` are about the measurement.
    """

    checks: tuple[VerificationCheck, ...]
    acceptance: str
    manifest_sha256: str
    left_out: tuple[SkippedCheck, ...] = ()
    speedup: Speedup | None = None
    warnings: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return all(check.ok for check in self.checks)

    def as_dict(self) -> dict[str, Any]:
        """Return the document of `verify --json`."""
        return {
            "format_version": 1,
            "ok": self.ok,
            "acceptance": self.acceptance,
            **(self.speedup.as_dict() if self.speedup else {}),
            "checks": [{**asdict(check), "seconds": round(check.seconds, 3)} for check in self.checks],
            "left_out": [asdict(each) for each in self.left_out],
            "warnings": [*self.warnings],
            "manifest": self.manifest_sha256,
        }

    @property
    def failure(self) -> TrtspecError | None:
        """Return GateNotMet if only minimums of the recipe are missed, else VerificationFailed, or None."""
        failed = [check for check in self.checks if not check.ok]
        if not failed:
            return None
        message = "; ".join(f"{check.name}: {check.detail}" for check in failed)
        if all(check.name.startswith("min_") for check in failed):
            skips = " ".join(f"--skip-gate {check.name}" for check in failed)
            return GateNotMet(message, hint=f"choose another draft, change the limit in the recipe, or use {skips}")
        return VerificationFailed(message)

    @property
    def undecided(self) -> tuple[VerificationCheck, ...]:
        return tuple(check for check in self.checks if check.state == UNDECIDED)

    def under(self, policy: str) -> VerificationReport:
        """Return a copy in which undecided checks pass or fail according to `policy`, "pass" or "fail"."""
        decided = (replace(each, ok=policy == PASS) if each.state == UNDECIDED else each for each in self.checks)
        return replace(self, checks=tuple(decided))

    def without(self, gates: Iterable[str]) -> VerificationReport:
        """Return a copy without the checks that belong to `gates`."""
        unwanted = frozenset(gates)
        return replace(self, checks=tuple(each for each in self.checks if (each.gate or each.name) not in unwanted))

    def after(self, earlier: VerificationReport | None) -> VerificationReport:
        """Return a copy that also has the checks of an earlier verification that are missing in this one.

        Earlier checks on a server take precedence over checks in this process.
        """
        found = {check.name: check for check in (earlier.checks if earlier else ())}
        weaker = {name for name, check in found.items() if check.measured_by == SERVER}
        found |= {
            check.name: check for check in self.checks if check.measured_by != PROCESS or check.name not in weaker
        }
        left_out = tuple(each for each in self.left_out if each.name not in found)
        return replace(self, checks=tuple(found.values()), left_out=left_out)


@dataclass(frozen=True)
class GateResults:
    """Evaluated and skipped gates, the speed-up if it was measured, and warnings about the measurement."""

    checks: tuple[VerificationCheck, ...]
    left_out: tuple[SkippedCheck, ...]
    speedup: Speedup | None = None
    warnings: tuple[str, ...] = ()


def undecided_policy(environment: Mapping[str, str] = os.environ) -> str:
    """Return the policy for undecided gates: the value of --undecided, else "fail" in CI and "pass" elsewhere.

    GitHub, GitLab and most other CI services set CI=true.
    """
    asked = environment.get(POLICY, "")
    if asked in (FAIL, PASS):
        return asked
    return FAIL if environment.get("CI", "").strip().lower() not in ("", "0", "false", "no") else PASS


def active_gates(recipe: ResolvedRecipe, skip: Collection[str] = ()) -> tuple[str, ...]:
    """Return the gates that require a comparison with and without speculation, except those in `skip`."""
    gates, drafts = recipe.gates, recipe.speculation.method != "none"
    limits = {"min_acceptance": gates.min_acceptance, "min_speedup": gates.min_speedup}
    names = ("lossless",) * gates.lossless + tuple(name for name, limit in limits.items() if limit and drafts)
    return tuple(name for name in names if name not in skip)


def check_gate_names(names: Iterable[str]) -> frozenset[str]:
    """Return gate names as a set; raises TrtspecError for an unknown name."""
    for name in names:
        if name not in GATES:
            hint = did_you_mean(name, GATES)
            raise TrtspecError(f"unknown gate {name!r}; known: {', '.join(GATES)}", where="--skip-gate", hint=hint)
    return frozenset(names)


def skipped_on_request(name: str) -> SkippedCheck:
    """Return the record of a gate that --skip-gate skipped."""
    return SkippedCheck(name, ON_REQUEST, "skipped by --skip-gate")


def gates_skipped_on_request(recipe: ResolvedRecipe, skip: Collection[str]) -> list[SkippedCheck]:
    """Return the records of all active gates that --skip-gate skipped."""
    return [skipped_on_request(name) for name in active_gates(recipe) if name in skip]


def needs_more_runs(recipe: ResolvedRecipe, skip: Collection[str], max_runs: int) -> Callable[[BenchComparison], bool]:
    """Return a function that requests another run while the interval of the speed-up includes its limit."""
    wanted, limit = "min_speedup" in active_gates(recipe, skip), recipe.gates.min_speedup
    return lambda measured: wanted and measured.runs < max_runs and measured.speedup.reaches(limit) is None


def evaluate_gates(
    recipe: ResolvedRecipe, comparison: BenchComparison, measured_by: str, skip: Collection[str] = (), remark: str = ""
) -> GateResults:
    """Evaluate the recipe's gates on a comparison made in `measured_by`, "process" or "server".

    `remark` is appended to the details of the gates min_acceptance and min_speedup.
    """
    found = [_EVALUATE[name](recipe.gates, comparison) for name in active_gates(recipe, skip)]
    left_out = tuple(each for each in found if isinstance(each, SkippedCheck))
    seconds, checks = comparison.seconds / max(1, len(found) - len(left_out)), []
    for each in found:
        if isinstance(each, VerificationCheck):
            detail = f"{each.detail}; {remark}" if remark and each.name.startswith("min_") else each.detail
            checks.append(replace(each, detail=detail, gate=each.name, measured_by=measured_by, seconds=seconds))
    speedup = comparison.speedup if comparison.ratios and recipe.speculation.method != "none" else None
    return GateResults(tuple(checks), left_out, speedup)


def speedup_state(speedup: Speedup, limit: float) -> str:
    """Return "holds", "fails", or "undecided" if the interval of the speed-up includes the limit."""
    return HOLDS if speedup.low >= limit else FAILS if speedup.high < limit else UNDECIDED


def _lossless(gates: ResolvedGates, comparison: BenchComparison) -> VerificationCheck | SkippedCheck:
    if not comparison.ratios:
        return SkippedCheck("lossless", NOT_REPORTED, f"not measured: {NEEDS_BASELINE}")
    same, total = comparison.identical_texts, comparison.prompts
    detail = f"{same} of {total} texts are identical with and without speculation"
    exact = comparison.acceptance == "exact"
    if not exact:
        detail += f", but {comparison.acceptance} acceptance is lossy: sampled text differs from the target's"
    return VerificationCheck("lossless", exact and same == total, same, total, detail)


def _min_acceptance(gates: ResolvedGates, comparison: BenchComparison) -> VerificationCheck | SkippedCheck:
    if not comparison.counts_drafts:
        return SkippedCheck("min_acceptance", NOT_REPORTED, "not measured: the engine does not report draft counts")
    rate, limit = comparison.speculative.stats.acceptance_rate, gates.min_acceptance
    detail = f"acceptance rate {rate:.3f}, required: {limit}"
    return VerificationCheck("min_acceptance", rate >= limit, round(rate, 4), limit, detail)


def _min_speedup(gates: ResolvedGates, comparison: BenchComparison) -> VerificationCheck | SkippedCheck:
    limit = gates.min_speedup
    if not comparison.ratios:  # a required minimum that cannot be measured counts as missed
        detail = f"cannot be measured: {NEEDS_BASELINE}, or skip it with --skip-gate min_speedup"
        return VerificationCheck("min_speedup", False, None, limit, detail)
    speedup = comparison.speedup
    state, detail = speedup_state(speedup, limit), f"{speedup}, required: {limit}"
    if state == UNDECIDED:
        runs = "1 run" if comparison.runs == 1 else f"{comparison.runs} runs"
        detail += f"; undecided after {runs}: the interval includes the limit"
    elif speedup.samples < ENOUGH:
        detail += f"; the interval of fewer than {ENOUGH} prompts is unreliable"
    return VerificationCheck("min_speedup", state != FAILS, round(speedup.median, 3), limit, detail, state=state)


_EVALUATE = {"lossless": _lossless, "min_acceptance": _min_acceptance, "min_speedup": _min_speedup}
