# SPDX-License-Identifier: Apache-2.0
"""Measure speculation under a JSON schema against constrained decoding of the target alone, on the quickstart.

    python benchmarks/structured.py build/quickstart

Both arms run the same requests in the same engine, in turns; their greedy texts must be equal. The rows with "free" are
the same prompts without a grammar. Results: benchmarks/experiments/structured-output.md.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

from machine import environment

from trtspec.bench.artifact import open_artifact
from trtspec.engine.generation.request import Constraint

NAME = {"type": "string", "maxLength": 16}
SCHEMA = {
    "type": "array", "minItems": 4, "maxItems": 4,
    "items": {
        "type": "object", "required": ["id", "name", "email", "active"], "additionalProperties": False,
        "properties": {"id": {"type": "integer", "minimum": 0, "maximum": 9999}, "name": NAME,
                       "email": {"type": "string", "maxLength": 32}, "active": {"type": "boolean"}},
    },
}  # fmt: skip
PROMPTS = (
    '[{"id": 612, "name": "ada", "email": "ada@example.com", "active": true},\n {"id": ',
    '[{"id": 7, "name": "grace", "email": "grace@example.com", "active": false},\n {"id": ',
    '{"users": ',
    "# the users as JSON\n",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("artifact", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--max-tokens", type=int, default=200)
    given = parser.parse_args()
    rows = []
    with open_artifact(given.artifact) as artifact:
        for label, constraint in (("schema", Constraint("json_schema", json.dumps(SCHEMA))), ("free", None)):
            for prompt in PROMPTS:
                rows.append(measure(artifact, label, prompt, constraint, given))
                print(json.dumps(rows[-1]))
    for label in ("schema", "free"):
        ratios = [row["speedup"] for row in rows if row["grammar"] == label]
        print(f"{label}: median speed-up {statistics.median(ratios):.2f}")
    print(json.dumps(environment()))


def measure(artifact: Any, label: str, prompt: str, constraint: Constraint | None, given: Any) -> dict[str, Any]:
    """Return the median speed-up of one prompt over the rounds, and the counts of its text."""
    arms = {
        length: artifact.request(prompt, given.max_tokens, constraint=constraint, draft_len=length)
        for length in (0, None)
    }
    seconds: dict[int | None, list[float]] = {0: [], None: []}
    results: dict[int | None, Any] = {}
    for turn in range(given.rounds + 1):
        for length, request in arms.items():
            begun = time.perf_counter()
            (results[length],) = artifact.engine.generate([request])
            if turn:  # the first round warms up and compiles the grammar
                seconds[length].append(time.perf_counter() - begun)
    assert results[0].ids == results[None].ids
    stats = results[None].stats
    ratios = [alone / drafted for alone, drafted in zip(seconds[0], seconds[None], strict=True)]
    return {
        "grammar": label,
        "tokens": stats.new_tokens,
        "finish_reason": results[None].finish_reason,
        "target_steps": results[0].stats.steps,
        "steps": stats.steps,
        "acceptance_rate": round(stats.acceptance_rate, 3),
        "tokens_per_s_alone": round(stats.new_tokens / statistics.median(seconds[0]), 1),
        "tokens_per_s": round(stats.new_tokens / statistics.median(seconds[None]), 1),
        "speedup": round(statistics.median(ratios), 2),
        "range": [round(min(ratios), 2), round(max(ratios), 2)],
    }


if __name__ == "__main__":
    main()
