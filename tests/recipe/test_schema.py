# SPDX-License-Identifier: Apache-2.0
"""The recipe models and their JSON Schema."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from trtspec.core.diagnostics import RecipeError
from trtspec.recipe.load import load_recipe
from trtspec.recipe.schema import Engine, Quantization, Recipe, Serving, recipe_json_schema
from trtspec.recipe.validate import recipe_keys

Write = Callable[..., Path]
Fail = Callable[..., RecipeError]

COMMIT = "0123456789abcdef0123456789abcdef01234567"

CONTRACT = f"""
# yaml-language-server: $schema=../trtspec-recipe.schema.json
schema: trtspec.recipe/1
name: llama-3.1-8b-fp8-draft-1b            # [a-z0-9][a-z0-9._-]{{0,62}}
target:
  model: meta-llama/Llama-3.1-8B-Instruct  # a directory (relative to the recipe), or a hub id
  revision: {COMMIT}   # a commit; required for a hub id
  dtype: bfloat16                          # auto | float16 | bfloat16
  quantization:
    weights: fp8                           # none | fp8 | fp8_rowwise
    kv_cache: fp8                          # none | fp8
    exclude: [lm_head]                     # fnmatch patterns
    calibration: {{prompts: calib.jsonl, samples: 128, max_len: 512}}
  parallel: {{tensor: 2, pipeline: 1}}
speculation:
  method: draft_target
  draft_len: 5
  draft:
    model: meta-llama/Llama-3.2-1B-Instruct
    revision: {COMMIT}
    quantization: {{weights: fp8}}
  options: {{}}
engine:
  backend: auto                            # auto | tensorrt_llm | llmapi | vllm | embedded
  gpu: h200
  max_batch_size: 8
  max_input_len: 1024
  max_seq_len: 2048
  max_num_tokens: 8192
  extra: {{gemm_plugin: auto}}
serving:
  streaming: true
  kv_cache_fraction: 0.9
  placement: {{target: [0, 1], draft: [0]}}
  max_queue_size: 128
  max_queue_delay_us: 100
plugins: [verify_chain]
gates: {{lossless: true, min_acceptance: 0.6, min_speedup: 1.2}}
"""


def test_documented_recipe_is_loaded_with_all_keys(write: Write, tmp_path: Path) -> None:
    recipe = load_recipe(write(CONTRACT, head="")).recipe
    quantized = {"weights": "fp8", "kv_cache": "fp8", "exclude": ["lm_head"]}
    calibration = {"prompts": f"{tmp_path}/calib.jsonl", "samples": 128, "max_len": 512}
    assert recipe.target.model_dump() == {
        "model": "meta-llama/Llama-3.1-8B-Instruct",
        "revision": COMMIT,
        "allow_pickle": False,
        "sha256": {},
        "dtype": "bfloat16",
        "quantization": {**quantized, "calibration": calibration},
        "parallel": {"tensor": 2, "pipeline": 1, "embedding": True},
        "allow_nonfinite": False,
    }
    assert recipe.speculation.draft is not None
    assert recipe.speculation.draft.quantization == Quantization(weights="fp8")
    assert recipe.engine == Engine(gpu="h200", max_input_len=1024, max_num_tokens=8192, extra={"gemm_plugin": "auto"})
    assert recipe.serving.model_dump()["placement"] == {"target": [0, 1], "draft": [0]}
    assert (recipe.plugins, recipe.gates.min_speedup) == (["verify_chain"], 1.2)


@pytest.mark.parametrize("fraction", [0, -0.1, 1.01, True, "0.5"])
def test_kv_cache_fraction_outside_0_to_1_is_rejected(fraction: object) -> None:
    with pytest.raises(ValidationError):
        Serving.model_validate({"kv_cache_fraction": fraction})


@pytest.mark.parametrize("fraction", [1, 1.0, 0.01])
def test_kv_cache_fraction_up_to_1_is_accepted(fraction: float) -> None:
    assert Serving.model_validate({"kv_cache_fraction": fraction}).kv_cache_fraction == fraction


@pytest.mark.parametrize(
    "limits",
    [
        {"max_body_bytes": 0},
        {"max_choices": 0},
        {"requests_per_minute": -1},
        {"requests_per_minute": 1.5},
        {"timeout_s": 0},
        {"stall_s": float("inf")},
        {"write_timeout_s": 0},
        {"body_timeout_s": float("nan")},
        {"max_texts": 3},  # the engine's number of slots
    ],
)
def test_invalid_limits_are_rejected(limits: dict[str, float]) -> None:
    with pytest.raises(ValidationError):
        Serving.model_validate({"limits": limits})


@pytest.mark.parametrize("name", ["", "A", "-a", ".a", "a b", "a/b", "a" * 64, "a\n"])
def test_invalid_names_are_rejected(name: str) -> None:
    with pytest.raises(ValidationError, match="should match pattern"):
        Recipe.model_validate({"schema": "trtspec.recipe/1", "name": name, "target": {"model": "/t"}})


def test_name_of_63_characters_is_accepted() -> None:
    recipe = Recipe.model_validate({"schema": "trtspec.recipe/1", "name": "a" * 63, "target": {"model": "/t"}})
    assert recipe.name == "a" * 63


# The JSON Schema


def objects(schema: Any) -> Iterator[dict[str, Any]]:
    if isinstance(schema, dict):
        yield schema
        for value in schema.values():
            yield from objects(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from objects(value)


def test_json_schema_has_its_id_and_the_keys_extends_and_matrix() -> None:
    schema = recipe_json_schema()
    assert (schema["$schema"], schema["$id"], schema["title"]) == (
        "https://json-schema.org/draft/2020-12/schema",
        "trtspec.recipe/1",
        "trtspec recipe",
    )
    assert list(schema["properties"]) == [
        *(
            "schema",
            "name",
            "target",
            "speculation",
            "engine",
            "serving",
            "plugins",
            "gates",
            "fleet",
            "extends",
            "matrix",
        )
    ]


def test_recipe_keys_all_have_a_description() -> None:
    assert [key for key, description in recipe_keys().items() if not description] == []


def test_json_schema_rejects_unknown_keys_in_all_models() -> None:
    closed = [part for part in objects(recipe_json_schema()) if "properties" in part and "title" in part]
    assert len(closed) == 17
    assert all(part["additionalProperties"] is False for part in closed)


def test_json_schema_requires_keys_only_without_extends_or_matrix() -> None:
    schema = recipe_json_schema()
    assert schema["if"] == {"anyOf": [{"required": ["extends"]}, {"required": ["matrix"]}]}
    assert schema["else"]["required"] == ["schema", "name", "target"]
    assert schema["else"]["properties"]["target"] == {"required": ["model"]}
    outside = [part for part in objects({**schema, "if": {}, "else": {}}) if "required" in part]
    assert [part["required"] for part in outside] == [["target"], ["max_batch", "draft_len"]]


def test_json_schema_contains_every_recipe_key() -> None:
    schema = recipe_json_schema()

    def keys(part: dict[str, Any], prefix: str) -> Iterator[str]:
        part = schema["$defs"][part["$ref"].rsplit("/", 1)[-1]] if "$ref" in part else part
        for option in part.get("anyOf", []):
            yield from keys(option, prefix)
        if "items" in part:
            yield from keys(part["items"], f"{prefix}*.")
        for key, below in part.get("properties", {}).items():
            yield prefix + key
            if key != "matrix":
                yield from keys(below, f"{prefix}{key}.")

    assert sorted(keys({**schema, "anyOf": []}, "")) == sorted(recipe_keys())


@pytest.mark.parametrize(
    ("lines", "place", "message"),
    [
        ("schedule: [{max_batch: 0, draft_len: 1}]", "schedule.0.max_batch", "must be at least 1"),
        ("schedule: [{max_batch: 4, draft_len: 1, len: 2}]", "schedule.0.len", "unknown key 'len'"),
        ("schedule: [{max_batch: 4}]", "schedule.0.draft_len", "draft_len is required"),
        ("schedule: [{max_batch: 4, draft_len: 2}, {max_batch: 4, draft_len: 1}]", "schedule", "must increase"),
        ("schedule: [{max_batch: 4, draft_len: 2}, {max_batch: 8, draft_len: 3}]", "schedule", "grows from 2 to 3"),
        ("verify: typical", "verify", "'typical' is not one of standard, block"),
        ("acceptance_rate_threshold: 0", "acceptance_rate_threshold", "must be more than 0"),
        ("acceptance_window: 4", "acceptance_window", "acceptance_window requires acceptance_rate_threshold"),
    ],
)
def test_invalid_schedule_or_verification_is_reported_at_its_line(
    fail: Fail, lines: str, place: str, message: str
) -> None:
    (problem,) = fail(f"speculation:\n  method: ngram\n  {lines}\n").diagnostics
    assert problem.path == f"speculation.{place}"
    assert message in problem.message
    assert lines.split(":", maxsplit=1)[0] in str(problem.mark.text)


def test_schedule_may_end_with_draft_len_zero(write: Write) -> None:
    path = write(
        "speculation:\n  method: ngram\n  schedule: [{max_batch: 2, draft_len: 8}, {max_batch: 4, draft_len: 0}]\n"
    )
    assert [each.draft_len for each in load_recipe(path).recipe.speculation.schedule] == [8, 0]
