# SPDX-License-Identifier: Apache-2.0
"""Measure speculation under a JSON schema against constrained decoding of the target alone, on the quickstart.

    python benchmarks/structured.py build/quickstart
    python benchmarks/structured.py build/quickstart --schemas 1000 --out benchmarks/results/structured.json

Both arms run the same requests in the same engine, in turns; their greedy texts must be equal. The rows with "free" are
the same prompts without a grammar. With --schemas, every text has another random schema, and jsonschema, which shares
no code with the engine's grammars, validates every text that is complete.
Results: benchmarks/experiments/structured-output.md.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from machine import environment

sys.path.insert(0, str(Path(__file__).parents[1]))

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
    parser.add_argument("--schemas", type=int, help="measure this number of random schemas instead")
    parser.add_argument("--out", type=Path, help="write the results of --schemas as JSON")
    given = parser.parse_args()
    if given.schemas:
        measure_schemas(given)
        return
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


def measure_schemas(given: Any) -> None:
    """Print and write the results of random schemas; raise if a text is invalid or differs between the arms."""
    rows = []
    with open_artifact(given.artifact) as artifact:
        schemas = random_schemas()
        measure_schema(artifact, -1, {"type": "null"}, given)  # loads the library
        for number in range(given.schemas):
            seed, schema = next(schemas)
            rows.append(measure_schema(artifact, seed, schema, given))
            if number % 50 == 49:
                print(json.dumps(summary(rows)), flush=True)
    document = {"benchmark": "structured", "machine": environment(), **summary(rows), "schemas": rows}
    if given.out:
        given.out.write_text(json.dumps(document) + "\n")


def random_schemas() -> Iterator[tuple[int, Any]]:
    """Yield seeds and schemas; those whose references are not at the top would be invalid and are left out."""
    from tests.engine.grammars import has_references_of_its_own, random_schema

    seed = 0
    while True:
        schema = random_schema(seed)
        if not has_references_of_its_own(schema):
            yield seed, schema
        seed += 1


def measure_schema(artifact: Any, seed: int, schema: Any, given: Any) -> dict[str, Any]:
    """Return the times and counts of both arms for one schema, after checking their texts."""
    import jsonschema

    constraint, prompt = Constraint("json_schema", json.dumps(schema)), PROMPTS[seed % len(PROMPTS)]
    artifact.engine.generate([artifact.request(prompt, 1, constraint=constraint)])  # compiles it
    arms = {name: artifact.request(prompt, given.max_tokens, constraint=constraint, draft_len=length)
            for name, length in (("alone", 0), ("drafted", None))}  # fmt: skip
    results, seconds = {}, {}
    for name in sorted(arms, reverse=bool(seed % 2)):
        begun = time.perf_counter()
        (results[name],) = artifact.engine.generate([arms[name]])
        seconds[name] = time.perf_counter() - begun
    drafted, alone = results["drafted"], results["alone"]
    assert drafted.ids == alone.ids, (seed, drafted.ids, alone.ids)
    is_complete = drafted.finish_reason == "end_id"
    if is_complete:
        jsonschema.Draft202012Validator(schema).validate(json.loads(artifact.tokenizer.decode(drafted.ids)))
    return {"seed": seed, "tokens": len(drafted.ids), "is_complete": is_complete, "target_steps": alone.stats.steps,
            "steps": drafted.stats.steps, "drafted": drafted.stats.drafted, "accepted": drafted.stats.accepted,
            "alone_s": round(seconds["alone"], 5), "drafted_s": round(seconds["drafted"], 5)}  # fmt: skip


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the counts of the texts and the speed-up of all, and of those of at least 16 tokens."""
    longer = [row for row in rows if row["tokens"] >= 16]

    def total(key: str, of: list[dict[str, Any]] = rows) -> Any:
        return sum(row[key] for row in of)

    return {
        "texts": len(rows),
        "equal": len(rows),
        "valid": total("is_complete"),
        "cut_by_max_tokens": len(rows) - total("is_complete"),
        "tokens": total("tokens"),
        "target_steps": total("target_steps"),
        "steps": total("steps"),
        "acceptance_rate": round(total("accepted") / max(1, total("drafted")), 3),
        "speedup": round(total("alone_s") / total("drafted_s"), 2),
        "longer_texts": len(longer),
        "speedup_of_longer": round(total("alone_s", longer) / total("drafted_s", longer), 2) if longer else None,
        "median_speedup_of_longer": (
            round(statistics.median(row["alone_s"] / row["drafted_s"] for row in longer), 2) if longer else None
        ),
    }


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
