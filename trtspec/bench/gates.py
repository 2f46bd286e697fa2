# SPDX-License-Identifier: Apache-2.0
"""Evaluate the recipe's gates on measured results.

Skipped gates are returned with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from trtspec.bench.bench import DRAFTS_ALWAYS, BenchComparison, RunAgain
from trtspec.bench.sources import Overlap
from trtspec.bench.speedup import ENOUGH, FAILS, UNDECIDED, Speedup
from trtspec.bench.verification_report import NOT_REPORTED, ON_REQUEST, SkippedCheck, VerificationCheck
from trtspec.core.errors import TrtspecError
from trtspec.core.registry import did_you_mean
from trtspec.recipe.resolve import ResolvedGates, ResolvedRecipe

GATES = ("lossless", "min_acceptance", "min_speedup", "quantized_parity")


@dataclass(frozen=True)
class GateResults:
    """Evaluated gates, skipped gates, and the speed-up if it was measured.

    `overlap` counts the prompts that the draft was trained on, if any.
    """

    checks: tuple[VerificationCheck, ...]
    left_out: tuple[SkippedCheck, ...]
    speedup: Speedup | None = None
    overlap: Overlap | None = None

    def noting(self, overlap: Overlap | None) -> GateResults:
        """Return a copy whose limit checks mention the overlap of measuring and training prompts."""
        if overlap is None:
            return self
        checks = (
            replace(each, detail=f"{each.detail}; {overlap}") if each.name.startswith("min_") else each
            for each in self.checks
        )
        return replace(self, checks=tuple(checks), overlap=overlap)


def active_gates(recipe: ResolvedRecipe, skip: Iterable[str] = ()) -> tuple[str, ...]:
    """Return the names of the gates to evaluate by comparing with and without speculation, except those in `skip`."""
    gates, drafts = recipe.gates, recipe.speculation.method != "none"
    limits = {"min_acceptance": gates.min_acceptance, "min_speedup": gates.min_speedup}
    names = ("lossless",) * gates.lossless + tuple(name for name, limit in limits.items() if limit and drafts)
    return tuple(name for name in names if name not in frozenset(skip))


def check_gate_names(names: Iterable[str]) -> frozenset[str]:
    """Return the gates to skip; raise TrtspecError for an unknown name."""
    for name in names:
        if name not in GATES:
            hint = did_you_mean(name, GATES)
            raise TrtspecError(f"unknown gate {name!r}; known: {', '.join(GATES)}", where="--skip-gate", hint=hint)
    return frozenset(names)


def skipped_on_request(name: str) -> SkippedCheck:
    """Return the record of a check that was skipped with --skip-gate."""
    return SkippedCheck(name, ON_REQUEST, "skipped by --skip-gate")


def gates_skipped_on_request(recipe: ResolvedRecipe, skip: Iterable[str]) -> list[SkippedCheck]:
    """Return the records of all gates that were skipped with --skip-gate."""
    return [skipped_on_request(name) for name in active_gates(recipe) if name in frozenset(skip)]


def needs_more_runs(recipe: ResolvedRecipe, skip: Iterable[str], max_runs: int) -> RunAgain:
    """Return a function that requests another run while the interval of the speed-up includes its limit."""
    wanted, limit = "min_speedup" in active_gates(recipe, skip), recipe.gates.min_speedup
    return lambda measured: wanted and measured.runs < max_runs and measured.speedup.reaches(limit) is None


def evaluate_gates(
    recipe: ResolvedRecipe, comparison: BenchComparison, measured_by: str, skip: Iterable[str] = ()
) -> GateResults:
    """Evaluate the gates; each check records `measured_by`."""
    found = [_JUDGES[name](recipe.gates, comparison) for name in active_gates(recipe, skip)]
    judged = [each for each in found if isinstance(each, VerificationCheck)]
    seconds = comparison.seconds / max(1, len(judged))
    checks = tuple(replace(each, gate=each.name, measured_by=measured_by, seconds=seconds) for each in judged)
    compared = comparison.ratios and recipe.speculation.method != "none"
    left_out = tuple(each for each in found if isinstance(each, SkippedCheck))
    return GateResults(checks, left_out, comparison.speedup if compared else None)


def _lossless(gates: ResolvedGates, comparison: BenchComparison) -> VerificationCheck | SkippedCheck:
    if not comparison.ratios:
        return SkippedCheck("lossless", NOT_REPORTED, f"not measured: {DRAFTS_ALWAYS}")
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
    if not comparison.ratios:  # a required limit that cannot be measured counts as missed
        detail = f"cannot be measured: {DRAFTS_ALWAYS}, or skip it with --skip-gate min_speedup"
        return VerificationCheck("min_speedup", False, None, limit, detail)
    speedup = comparison.speedup
    state, detail = speedup.state(limit), f"{speedup}, required: {limit}"
    if state == UNDECIDED:
        detail += f"; undecided after {_times(comparison.runs)}: the interval includes the limit"
    elif speedup.samples < ENOUGH:
        detail += f"; the interval of fewer than {ENOUGH} prompts is unreliable"
    return VerificationCheck("min_speedup", state != FAILS, round(speedup.median, 3), limit, detail, state=state)


def _times(runs: int) -> str:
    return "1 run" if runs == 1 else f"{runs} runs"


_JUDGES: dict[str, Callable[[ResolvedGates, BenchComparison], VerificationCheck | SkippedCheck]] = {
    "lossless": _lossless,
    "min_acceptance": _min_acceptance,
    "min_speedup": _min_speedup,
}
