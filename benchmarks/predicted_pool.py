# SPDX-License-Identifier: Apache-2.0
"""Pool several runs of predicted.py, because servers with equal arguments differ between starts.

    python benchmarks/predicted_pool.py RUN.json RUN.json ... --out FILE.json

Two servers with the same arguments differ by more than the interval of their rounds
(benchmarks/experiments/vllm-predictions.md). Each profile's prediction is therefore compared with the mean over several
starts. All results of every run count.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.predicted import rows, save

Run = dict[str, Any]  # the results of predicted.py for a method


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    documents = [json.loads(path.read_text()) for path in asked.runs]
    runs: dict[str, list[Run]] = {}
    for document in documents:
        for method, run in document["methods"].items():
            runs.setdefault(method, []).append(run)
    found = {method: pooled(of) for method, of in runs.items()}
    machines = [document["machine"] for document in documents]
    save({"runs": [path.name for path in asked.runs], "methods": found, "machines": machines}, asked.out)
    print(json.dumps({method: each["summary"] for method, each in found.items()}, indent=1))


def pooled(runs: Sequence[Run]) -> dict[str, Any]:
    """Return the measurements of a method's runs, and the accuracy of each profile, as lists by concurrency."""
    measured = means(runs)
    profiles = [
        rows({"predictions": [prediction], "measured": measured}) for run in runs for prediction in run["predictions"]
    ]
    batches = sorted({row["batch"] for profile in profiles for row in profile})
    by_batch = {batch: [row for profile in profiles for row in profile if row["batch"] == batch] for batch in batches}
    return {
        "summary": {str(batch): summary(of) for batch, of in by_batch.items()},
        "measured": measured,
        "profiles": profiles,
    }


def means(runs: Sequence[Run]) -> dict[str, dict[str, dict[str, float]]]:
    """Return the geometric mean of the speed-ups of each length and load, and the number of servers."""
    found: dict[str, dict[str, list[float]]] = {}
    for run in runs:
        for length, batches in run["measured"].items():
            for batch, point in batches.items():
                found.setdefault(length, {}).setdefault(batch, []).append(point["ratio"])
    return {
        length: {
            batch: {"ratio": round(statistics.geometric_mean(ratios), 4), "servers": len(ratios), "most": max(ratios),
                    "least": min(ratios)}
            for batch, ratios in batches.items()
        }
        for length, batches in sorted(found.items(), key=lambda each: int(each[0]))
    }  # fmt: skip


def summary(of: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the maximum error of each profile at a load, and the quality of its chosen length."""
    return {"errors": [row["error"] for row in of], "chosen": [row["chosen"] for row in of],
            "chosen_of_best": [row["chosen_of_best"] for row in of]}  # fmt: skip


if __name__ == "__main__":
    main()
