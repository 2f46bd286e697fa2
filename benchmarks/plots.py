# SPDX-License-Identifier: Apache-2.0
"""Draw the plots of the README from committed results into docs/: `python -m benchmarks.plots`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trtspec.planning.documents import ProfileDocument
from trtspec.report.plots import WIDTH, Series, against_load, grouped, style

ROOT = Path(__file__).parents[1]
RESULTS, DOCS = ROOT / "benchmarks" / "results", ROOT / "docs"
METHODS = {"draft_target": "quickstart", "ngram": "quickstart-ngram"}
MARGIN, SHOWN = 14, 560  # margin in units, and display width in pixels


def main() -> None:
    """Write every plot."""
    for name, draw in PLOTS.items():
        (DOCS / name).write_text(draw())


def by_concurrency() -> str:
    """Draw the speed-up of a fixed draft length and of a schedule over the target alone, by concurrency."""
    recipes = load("profile.json")["recipes"]
    loads = [row["concurrency"] for row in recipes[METHODS["draft_target"]]["schedule"]["tokens_per_s"]]
    ratios = {}
    for method, recipe in METHODS.items():
        measured = recipes[recipe]["schedule"]
        for arm, name in (("fixed", f"draft_len {measured['fixed']}"), ("scheduled", "schedule")):
            ratios[f"{method}, {name}"] = [row[arm] / row["alone"] for row in measured["tokens_per_s"]]
    return standing_alone(against_load("Speed-up by requests at once", loads, ratios, "requests at once"))


def by_kind() -> str:
    """Draw the drafts' mean accepted length by kind of prompt in descending order."""
    profile = ProfileDocument.model_validate(load("profile-kinds.json"))
    found = {
        f"{method.method}, draft_len {method.draft_len}": {
            each.kind: each.mean_accepted_len.token_weighted for each in method.by_kind
        }
        for method in profile.methods
    }
    first = next(iter(found.values()))
    kinds = sorted(first, key=lambda kind: -first[kind][0])
    series = [
        Series(name, [of[kind][0] for kind in kinds], [of[kind][1:] for kind in kinds]) for name, of in found.items()
    ]
    return standing_alone(grouped("Mean accepted length by kind", kinds, series, "tokens a step", mark=1.0))


def load(name: str) -> Any:
    """Return a committed result."""
    return json.loads((RESULTS / name).read_text())


def standing_alone(picture: str) -> str:
    """Return a plot as a complete SVG file, with colours and background for light and dark mode."""
    [height] = re.findall(rf'viewBox="0 0 {WIDTH} (\d+)"', picture)
    wide, high = WIDTH + 2 * MARGIN, int(height) + 2 * MARGIN
    box = f'"{-MARGIN} {-MARGIN} {wide} {high}"'
    size = f'width="{SHOWN}" height="{round(SHOWN * high / wide)}"'
    ground = f'<rect x="{-MARGIN}" y="{-MARGIN}" width="{wide}" height="{high}" rx="8" fill="var(--bg)"/>'
    opened = picture.replace(f'"0 0 {WIDTH} {height}"', box, 1)
    opened = opened.replace("<svg ", f'<svg xmlns="http://www.w3.org/2000/svg" {size} ', 1)
    return opened.replace("</title>", f"</title><style>{style()}</style>{ground}", 1) + "\n"


PLOTS: dict[str, Callable[[], str]] = {"speedup-by-concurrency.svg": by_concurrency, "accepted-by-kind.svg": by_kind}


if __name__ == "__main__":
    main()
