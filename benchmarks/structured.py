# SPDX-License-Identifier: Apache-2.0
"""Measure speculation under a JSON schema against constrained decoding of the target alone, on the quickstart.

    python benchmarks/structured.py build/quickstart --out benchmarks/results/structured.json
    python benchmarks/structured.py build/quickstart --schemas 1000 --out benchmarks/results/structured-schemas.json

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
from itertools import islice
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
    parser.add_argument("--batch", type=int, default=8, help="random schemas that are generated at once")
    parser.add_argument("--items", type=int, default=0, help="make each a list of this number of values")
    parser.add_argument("--out", type=Path, help="write the results as JSON")
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
    write(given.out, {"rounds": given.rounds, "prompts": rows})


def write(out: Path | None, results: dict[str, Any]) -> None:
    if out:
        out.write_text(json.dumps({"benchmark": "structured", "machine": environment(), **results}) + "\n")


def measure_schemas(given: Any) -> None:
    """Print and write the results of random schemas; raise if a text is invalid or differs between the arms."""
    rows: list[dict[str, Any]] = []
    groups: list[dict[str, float]] = []
    with open_artifact(given.artifact) as artifact:
        schemas = random_schemas(given.items)
        measure_group(artifact, [(0, {"type": "null"})], given)  # loads the library
        while len(rows) < given.schemas:
            members = list(islice(schemas, min(given.batch, given.schemas - len(rows))))
            texts, seconds = measure_group(artifact, members, given)
            rows += texts
            groups.append(seconds)
            print(json.dumps(summary(rows, groups)), flush=True)
    results = {"batch": given.batch, "items": given.items, **summary(rows, groups)}
    write(given.out, {**results, "texts_by_seed": rows, "seconds": groups})


def random_schemas(items: int) -> Iterator[tuple[int, Any]]:
    """Yield seeds and schemas, or with `items` schemas of lists of that many values of a random schema.

    Schemas whose references are not at the top would be invalid and are left out.
    """
    from tests.engine.grammars import has_references_of_its_own, random_schema

    seed = 0
    while True:
        schema = random_schema(seed)
        if items and "$ref" not in json.dumps(schema):
            yield seed, {"type": "array", "items": schema, "minItems": items, "maxItems": items}
        elif not items and not has_references_of_its_own(schema):
            yield seed, schema
        seed += 1


def measure_group(artifact: Any, members: list[tuple[int, Any]], given: Any) -> tuple[list[Any], dict[str, float]]:
    """Return the counts of each schema's texts, and the seconds of each arm, after checking the texts."""
    import jsonschema

    guides = [Constraint("json_schema", json.dumps(schema)) for _, schema in members]
    texts = [PROMPTS[seed % len(PROMPTS)] for seed, _ in members]
    results: dict[str, Any] = {}
    seconds: dict[str, float] = {}

    def requests(max_tokens: int, length: int | None) -> list[Any]:
        pairs = zip(texts, guides, strict=True)
        return [artifact.request(text, max_tokens, constraint=guide, draft_len=length) for text, guide in pairs]

    artifact.engine.generate(requests(1, 0))  # compiles the schemas
    for name, length in sorted((("alone", 0), ("drafted", None)), reverse=bool(members[0][0] % 2)):
        begun = time.perf_counter()
        results[name] = artifact.engine.generate(requests(given.max_tokens, length))
        seconds[name] = round(time.perf_counter() - begun, 5)
    rows = []
    for (seed, schema), alone, drafted in zip(members, results["alone"], results["drafted"], strict=True):
        assert drafted.ids == alone.ids, (seed, drafted.ids, alone.ids)
        is_complete = drafted.finish_reason == "end_id"
        if is_complete:
            jsonschema.Draft202012Validator(schema).validate(json.loads(artifact.tokenizer.decode(drafted.ids)))
        counts = {"drafted": drafted.stats.drafted, "accepted": drafted.stats.accepted}
        steps = {"target_steps": alone.stats.steps, "steps": drafted.stats.steps}
        rows.append({"seed": seed, "tokens": len(drafted.ids), "is_complete": is_complete, **steps, **counts})
    return rows, seconds


def summary(rows: list[dict[str, Any]], groups: list[dict[str, float]]) -> dict[str, Any]:
    """Return the counts of the texts and the speed-up over all of them."""

    def total(key: str) -> Any:
        return sum(row[key] for row in rows)

    alone, drafted = (sum(group[arm] for group in groups) for arm in ("alone", "drafted"))
    return {
        "texts": len(rows),
        "equal": len(rows),
        "valid": total("is_complete"),
        "cut_by_max_tokens": len(rows) - total("is_complete"),
        "tokens": total("tokens"),
        "target_steps": total("target_steps"),
        "steps": total("steps"),
        "acceptance_rate": round(total("accepted") / max(1, total("drafted")), 3),
        "speedup": round(alone / drafted, 2),
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
