# SPDX-License-Identifier: Apache-2.0
"""A resolved recipe is complete, and equal for any order of the file."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from trtspec.recipe.load import load_recipe
from trtspec.recipe.resolve import ResolvedRecipe, resolve_recipe
from trtspec.recipe.schema import Recipe

Write = Callable[..., Path]

DRAFT = "speculation: {method: draft_target, draft: {model: ./d, parallel: {tensor: 2}}"
DRAFT += ", options: {b: 1, a: {d: 2, c: 3}}}\n"


def resolve(recipe: Recipe, draft_len: int = 5, **facts: Any) -> ResolvedRecipe:
    known: dict[str, Any] = {
        "target_dtype": "bfloat16",
        "draft_dtype": "float16",
        "backend": "embedded",
        "backend_why": "no GPU here",
        "version": "",
        "draft_len": draft_len,
        "max_draft_tokens": draft_len,
        "options": recipe.speculation.options,
        "acceptance": "exact",
        "has_draft_model": True,
    }
    return resolve_recipe(recipe, **(known | facts))


def leaves(value: Any) -> Iterator[Any]:
    children = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else None
    if children is None:
        yield value
    for child in children or ():
        yield from leaves(child)


@pytest.mark.parametrize("text", ["", DRAFT])
def test_resolved_recipe_contains_no_none(write: Write, text: str) -> None:
    resolved = resolve(load_recipe(write(text)).recipe)
    assert None not in list(leaves(resolved.model_dump()))
    assert None not in list(leaves(resolved.as_dict()))


def test_minimal_recipe_resolves_to_the_defaults(write: Write, tmp_path: Path) -> None:
    resolved = resolve(load_recipe(write("")).recipe, draft_len=0, draft_dtype=None)
    quantization = {
        "weights": "none",
        "kv_cache": "none",
        "exclude": ["lm_head"],
        "calibration": {"prompts": "", "samples": 128, "max_len": 512},
    }
    assert resolved.as_dict() == {
        "name": "tiny",
        "target": {
            "model": f"{tmp_path}/t",
            "revision": "",
            "allow_pickle": False,
            "sha256": {},
            "dtype": "bfloat16",
            "quantization": quantization,
            "parallel": {"tensor": 1, "pipeline": 1, "embedding": True},
            "allow_nonfinite": False,
        },
        "speculation": {
            "method": "none",
            "draft_len": 0,
            "acceptance": "exact",
            "options": {},
            "schedule": [],
            "confidence": 0.0,
            "verify": "standard",
            "acceptance_rate_threshold": 0.0,
            "acceptance_window": 0,
        },
        "engine": {
            "backend": "embedded",
            "backend_why": "no GPU here",
            "version": "",
            "device": "",
            "gpu": "",
            "max_batch_size": 8,
            "max_input_len": 1024,
            "max_seq_len": 2048,
            "max_num_tokens": 8192,
            "extra": {},
            "build": {"image": "", "timeout_s": 14400, "timing_cache": ""},
        },
        "serving": {
            "streaming": True,
            "kv_cache_fraction": 0.9,
            "placement": {"target": [0], "draft": []},
            "fast_logits": False,
            "openai": True,
            "openai_processes": 1,
            "limits": {
                "max_body_bytes": 4194304,
                "max_choices": 16,
                "requests_per_minute": 0,
                "timeout_s": 600.0,
                "stall_s": 30.0,
                "write_timeout_s": 1.0,
                "body_timeout_s": 10.0,
            },
            "tools": {"format": "auto"},
            "rollout": {
                "canary": [5, 25, 100],
                "hold_s": 10.0,
                "min_requests": 20,
                "max_failed": 0,
                "max_latency_ratio": 2.0,
                "shadow": 0,
            },
            "max_queue_size": 128,
            "warmup": False,
            "max_queue_delay_us": 100,
            "structured_output": False,
            "defaults": "trtspec",
        },
        "plugins": [],
        "gates": {"lossless": True, "min_acceptance": 0.0, "min_speedup": 0.0, "quantized_parity": 0.9, "prompts": ""},
    }


def test_auto_dtype_resolves_to_the_stored_dtype_and_explicit_dtype_remains(write: Write) -> None:
    recipe = load_recipe(write(DRAFT + "engine: {max_batch_size: 1}\n"), ["target.dtype=float16"]).recipe
    resolved = resolve(recipe, draft_dtype="bfloat16")
    assert resolved.target.dtype == "float16"
    (draft,) = resolved.speculation.drafts
    assert draft.dtype == "bfloat16"
    assert resolved.as_dict()["speculation"]["draft"]["dtype"] == "bfloat16"


def test_models_are_placed_on_the_first_gpus_by_default(write: Write) -> None:
    recipe = load_recipe(write(DRAFT), ["target.parallel={tensor: 2, pipeline: 2}"]).recipe
    assert resolve(recipe).serving.placement.model_dump() == {"target": [0, 1, 2, 3], "draft": [0, 1]}
    assert resolve(recipe, has_draft_model=False).serving.placement.draft == []  # it uses the target's GPUs
    told = load_recipe(write(DRAFT), ["serving.placement={target: [3], draft: [1, 2]}"]).recipe
    assert resolve(told).serving.placement.model_dump() == {"target": [3], "draft": [1, 2]}


@pytest.mark.parametrize(
    ("batch", "draft_len", "written", "tokens"),
    [(8, 5, "", 8192), (2048, 3, "", 8192), (2048, 4, "", 10240), (2048, 4, ", max_num_tokens: 7", 7)],
)
def test_max_num_tokens_default_covers_the_drafts_of_all_requests(
    write: Write, batch: int, draft_len: int, written: str, tokens: int
) -> None:
    recipe = load_recipe(write(f"engine: {{max_batch_size: {batch}{written}}}")).recipe
    assert resolve(recipe, draft_len=draft_len).engine.max_num_tokens == tokens
    assert (
        resolve(recipe, draft_len=1, max_draft_tokens=draft_len).engine.max_num_tokens == tokens
    )  # all nodes of a tree


def test_resolved_document_is_independent_of_the_order_of_the_file(write: Write) -> None:
    first = resolve(load_recipe(write("engine: {extra: {a: 1, b: 2}, gpu: x}\n" + DRAFT)).recipe).as_dict()
    swapped = DRAFT.replace("b: 1, a: {d: 2, c: 3}", "a: {c: 3, d: 2}, b: 1")
    second = resolve(load_recipe(write(swapped + "engine: {gpu: x, extra: {b: 2, a: 1}}\n")).recipe).as_dict()
    assert json.dumps(first) == json.dumps(second)


def test_resolved_recipe_is_frozen_and_round_trips_through_json(write: Write) -> None:
    resolved = resolve(load_recipe(write(DRAFT)).recipe)
    with pytest.raises(ValidationError, match="frozen"):
        resolved.name = "other"
    assert json.loads(json.dumps(resolved.as_dict())) == resolved.as_dict()


@pytest.mark.parametrize("wrong", [{"backend": "auto"}, {"target_dtype": "auto"}, {"draft_dtype": None}])
def test_unresolved_decision_raises_validation_error(write: Write, wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        resolve(load_recipe(write(DRAFT)).recipe, **wrong)
