# SPDX-License-Identifier: Apache-2.0
"""`trtspec bench --compare A.json B.json`: compare two saved load benchmarks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtspec.core.errors import GateNotMet

if TYPE_CHECKING:
    from trtspec.bench.load.comparison import LoadComparison, RatioGate


def compare_saved(a: Path, b: Path, least: float | None, *, absolutely: bool, json: bool) -> int:
    """Compare two saved documents, show the result and return the exit code."""
    from trtspec.cli.load_view import show_comparison
    from trtspec.cli.render import print_json

    document = comparison_document(a, b, least, absolutely=absolutely)
    print_json(document) if json else show_comparison(document)
    return 0 if document["ok"] else GateNotMet.exit_code


def comparison_document(a: Path, b: Path, least: float | None, *, absolutely: bool) -> dict[str, Any]:
    """Return the document of a comparison; raise TrtspecError if the two are not comparable."""
    from trtspec.bench.load.comparison import CONFIDENCE, FORMAT_VERSION, KIND, RatioGate, compare
    from trtspec.bench.load.schema import read_saved

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
