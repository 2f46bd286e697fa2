# SPDX-License-Identifier: Apache-2.0
"""Results of benchmarks: terminal output, gate, and comparison of two saved results of loads."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtspec.cli.render import print_line, print_result, show_table, warn
from trtspec.core.errors import GateNotMet

if TYPE_CHECKING:
    from trtspec.bench.load.comparison import LoadComparison, RatioGate
    from trtspec.bench.speedup import BenchComparison


Document = Mapping[str, Any]
NAMES = {"baseline": "target alone", "served": "as served"}
COLUMNS = ("load", "", "tokens/s", "TTFT p50/p99 ms", "TPOT p50/p99 ms", "e2e p50/p99 ms", "accepted", "speed-up")
BAR_WIDTH = 40
EIGHTHS = " ▏▎▍▌▋▊▉"
BARS: dict[str, tuple[str, Callable[[Document], float]]] = {
    "output_tokens_per_s": ("tokens/s", lambda arm: arm["output_tokens_per_s"]),
    "mean_e2e_ms": ("mean e2e ms (shorter is faster)", lambda arm: arm["e2e_ms"]["mean"]),
}


def show_sides(comparison: BenchComparison, what: str) -> None:
    """Show the speed and the acceptance of both sides as a table."""
    sides = (
        ("target alone", 1.0, comparison.baseline),
        ("speculative", comparison.speedup.median, comparison.speculative),
    )
    rows = [
        (
            name,
            f"{side.median:.0f}",
            f"{speedup:.2f}x",
            f"{side.stats.acceptance_rate:.3f}" if side.stats.drafted else "-",
            f"{side.stats.mean_accepted_len:.2f}" if side.stats.drafted or name == "target alone" else "-",
        )
        for name, speedup, side in sides
    ]
    columns = ("", "tokens/s", "speed-up", "acceptance rate", "mean accepted length")
    show_table(
        f"{what}: {comparison.prompts} prompts, {comparison.max_tokens} tokens each", columns, rows, (1, 2, 3, 4)
    )


def show_mark(document: Document) -> None:
    """Show the requested and the measured acceptance of a capacity test."""
    found = document["simulated"]
    measured = "unknown" if found["measured"] is None else f"{found['measured']:.2f}"
    print_line(
        f"SIMULATED acceptance: {found['mean_accepted_len']:.2f} tokens per step were requested, {measured} measured; "
        "the texts are not the target's",
        "yellow",
    )


def show_load(document: Document, what: str) -> None:
    """Show the table, the bars, the warnings and the conclusions of a load benchmark."""
    workload = document["workload"]
    title = f"{what}: {workload['prompts']} prompts ({workload['source']}), {workload['max_tokens']} tokens each"
    has_slo = document["slo"] is not None
    rows = [
        _row(point, name, has_slo=has_slo) for point in document["points"] for name in NAMES if name in point["arms"]
    ]
    columns = (*COLUMNS[:-1], "goodput", COLUMNS[-1]) if has_slo else COLUMNS
    show_table(title, columns, rows, range(2, len(columns)))
    for judged_by in dict.fromkeys(point["judged_by"] for point in document["points"]):
        print_line("\n" + "\n".join(_bars(document["points"], judged_by)))
    print_line("")
    _show_kinds(document["points"])
    for warning in document["warnings"]:
        warn(warning)
    for point in document["points"]:
        if same := point["identical_texts"]:
            print_line(f"{format_load(point['load'])}: {same['same']} of {same['compared']} texts are identical")
    for line in _conclusions(document):
        print_line(line)


def _show_kinds(points: Sequence[Document]) -> None:
    """Show the speed-up per prompt category and load, if there are several categories."""
    points = [point for point in points if point["speedup_by_kind"]]
    kinds = sorted({kind for point in points for kind in point["speedup_by_kind"]})
    if kinds:
        rows = [[kind, *(_speedup(point["speedup_by_kind"].get(kind)) for point in points)] for kind in kinds]
        columns = ("tokens by kind", *(format_load(point["load"]) for point in points))
        show_table("", columns, rows, range(1, len(columns)))


def format_load(load: Document) -> str:
    """Return a description of a load, such as "concurrency 4"."""
    return f"concurrency {load['concurrency']:g}" if "concurrency" in load else f"{load['requests_per_s']:g} requests/s"


def _row(point: Document, name: str, *, has_slo: bool) -> list[str]:
    arm = point["arms"][name]
    length = arm["mean_accepted_len"]
    cells = [format_load(point["load"]), NAMES[name], f"{arm['output_tokens_per_s']:,.0f}"]
    spreads = [arm[key] for key in ("ttft_ms", "tpot_ms", "e2e_ms")]
    cells += ["-" if each is None else f"{_short(each['p50'])} / {_short(each['p99'])}" for each in spreads]
    cells.append("-" if length is None else f"{length:.2f}")
    cells += [f"{arm['goodput_share']:.0%}"] if has_slo else []
    return [*cells, _speedup(point["speedup"]) if name == "served" else "1.00x" if point["speedup"] else "-"]


def _short(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.1f}" if number >= 10 else f"{number:.2f}"


def _speedup(speedup: Document | None) -> str:
    return "-" if speedup is None else f"{speedup['ratio']:.2f}x ({format_interval(speedup)})"


def format_interval(ratio: Document) -> str:
    """Return the confidence interval of a ratio as text, or "one round" without an interval."""
    low, high = ratio["low"], ratio["high"]
    return "one round" if low is None or high is None else f"{low:.2f} to {high:.2f}"


def _bars(points: Sequence[Document], judged_by: str) -> list[str]:
    """Return bars for the loads whose comparison uses the metric `judged_by` (tokens/s or mean e2e ms)."""
    unit, value = BARS[judged_by]
    arms = [
        (format_load(point["load"]), name, value(point["arms"][name]))
        for point in points if point["judged_by"] == judged_by for name in NAMES if name in point["arms"]
    ]  # fmt: skip
    most, width = max(number for _, _, number in arms), max(len(load) for load, _, _ in arms)
    lines, last = [unit], ""
    for load, name, number in arms:
        shown = "" if load == last else load
        lines.append(f"{shown:<{width}}  {NAMES[name]:<12}  {_bar(number / most)} {number:,.0f}")
        last = load
    return lines


def _bar(share: float) -> str:
    if "utf" not in (sys.stdout.encoding or "").lower():
        return "#" * max(1, round(share * BAR_WIDTH))
    whole, rest = divmod(max(1, round(share * BAR_WIDTH * 8)), 8)
    return "█" * whole + EIGHTHS[rest].strip()


def _conclusions(document: Document) -> list[str]:
    judged = [point for point in document["points"] if point["speedup"]]
    if not judged:
        return ["no baseline: the speed-up is unknown"]
    crossover = document["crossover"]
    lines = [
        f"{format_load(point['load'])}: {_describe_ratio(point['speedup'], 'with speculation')}" for point in judged
    ]
    if crossover:
        sure = "is slower" if crossover["is_shown"] else "may be slower"
        lines.append(f"crossover: from {format_load(crossover)} on, speculation {sure} ({crossover['speedup']:.2f}x)")
    return lines


def _describe_ratio(ratio: Document, subject: str) -> str:
    low, high = ratio["low"], ratio["high"]
    sure = low is not None and high is not None and (low > 1 or high < 1)
    value = f"{ratio['ratio']:.2f}"
    finding = f"{subject} {value} times as fast" if sure else f"{subject}: no difference shown ({value})"
    return f"{finding}, interval {format_interval(ratio)} of {ratio['rounds']} rounds"


def show_comparison(document: Document) -> None:
    """Show a comparison; the last line is the result of its gate."""
    rows = [
        (
            format_load(point["load"]),
            f"{point['b_to_a']['ratio']:.3f}",
            format_interval(point["b_to_a"]),
            f"{point['served_b_to_a']['ratio']:.3f}",
            f"{point['baseline_b_to_a']['ratio']:.3f}" if point["baseline_b_to_a"] else "-",
            {"faster": "B is faster", "slower": "B is SLOWER"}.get(point["verdict"], point["verdict"]),
        )
        for point in document["points"]
    ]
    columns = ("load", "B over A", f"{document['confidence']:.0%} interval", "as served", "target alone", "")
    show_table(f"A {document['a']}, B {document['b']}", columns, rows, (1, 2, 3, 4))
    for remark in document["remarks"]:
        warn(remark)
    print_line(document["says"])
    show_gate(document["gate"])


def show_gate(gate: Document | None) -> None:
    """Show the result of the gate on the minimum ratio, if one was requested."""
    if gate is None:
        return
    limit = f"minimum ratio {gate['min_ratio']:g}"
    if gate["ok"]:
        print_line(f"{limit}: reached" if gate["is_decided"] else f"{limit}: undecided",
            "green" if gate["is_decided"] else "yellow")  # fmt: skip
    elif gate["unfit"]:
        print_line(f"{limit}: cannot be evaluated: {'; '.join(dict.fromkeys(gate['unfit']))}", "red")
    else:
        print_line(f"{limit}: MISSED", "red")


def compare_saved(a: Path, b: Path, least: float | None, *, absolutely: bool, json: bool) -> int:
    """Compare two saved documents, show the result and return the exit code."""
    document = comparison_document(a, b, least, absolutely=absolutely)
    print_result(document, lambda: show_comparison(document), as_json=json)
    return 0 if document["ok"] else GateNotMet.exit_code


def comparison_document(a: Path, b: Path, least: float | None, *, absolutely: bool) -> dict[str, Any]:
    """Return the document of a comparison; raise TrtspecError if the two results are not comparable.

    `least` is the minimum ratio of the gate, or None. With `absolutely`, absolute speeds are compared.
    """
    from trtspec.bench.load.comparison import CONFIDENCE, FORMAT_VERSION, KIND, RatioGate, compare, read_saved

    found = compare(read_saved(a), read_saved(b), absolutely=absolutely)
    gate = RatioGate(least, tuple(each.ratio for each in found)) if least is not None else None
    return {
        "format_version": FORMAT_VERSION,
        "kind": KIND,
        "a": str(a),
        "b": str(b),
        "confidence": CONFIDENCE,
        "points": [each.as_dict() for each in found],
        "remarks": _warnings(found),
        "says": _summary(found),
        "gate": gate.as_dict() if gate else None,
        "ok": gate.ok if gate else True,
    }


def load_gate(document: dict[str, Any], least: float) -> RatioGate:
    """Return the gate of one run: a minimum speed-up for each load that has a baseline."""
    from trtspec.bench.load.comparison import RatioGate, confidence_for
    from trtspec.bench.load.intervals import ratio_of_rounds

    points = document["points"]
    found, unfit = [point["speedups"] for point in points if point["speedups"]], [point["unfit"] for point in points]
    ratios = tuple(ratio_of_rounds(each, confidence_for(len(found))) for each in found)
    return RatioGate(least, ratios, tuple(reason for reason in unfit if reason))


def _warnings(found: Sequence[LoadComparison]) -> list[str]:
    from trtspec.bench.load.comparison import SPEEDUP

    warnings = [
        f"the target alone is {each.baseline.value:.2f} times as fast in B: machine, engine or load differed"
        for each in found
        if each.baseline and each.baseline.shows
    ]
    if any(each.by != SPEEDUP for each in found):
        warnings.append("absolute speeds are compared, which include the effect of other load on the machines")
    return warnings


def _summary(found: Sequence[LoadComparison]) -> str:
    shown = [each for each in found if each.ratio.shows]
    if not shown:
        return "no difference shown"
    slower = sum(each.ratio.shows < 0 for each in shown)
    parts = [f"B is faster at {len(shown) - slower}"] * (slower < len(shown)) + [f"slower at {slower}"] * (slower > 0)
    others = ", no difference shown at the others" if len(shown) < len(found) else ""
    return f"{' and '.join(parts)} of {len(found)} loads{others}"
