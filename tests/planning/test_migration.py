# SPDX-License-Identifier: Apache-2.0
"""Migration of recipes to another TensorRT-LLM version: each key is kept, translated, or removed with a reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import Run
from trtspec.backends.base import backends_for_method
from trtspec.backends.common.trtllm_versions import version_specs
from trtspec.core.errors import TrtspecError
from trtspec.planning.migration import Migration, migrate
from trtspec.recipe.schema import Recipe

REVISION = "0" * 40


def recipe(**sections: Any) -> Recipe:
    document = {
        "schema": "trtspec.recipe/1",
        "name": "llama",
        "target": {"model": "meta-llama/Llama-3.1-8B-Instruct", "revision": REVISION},
        "engine": {"backend": "tensorrt_llm", "version": "1.2.1", "gpu": "h100"},
    }
    return Recipe.model_validate(document | sections)


def with_method(method: str, **more: Any) -> Recipe:
    return recipe(speculation={"method": method} | more)


def kinds(migration: Migration, kind: str) -> list[str]:
    return [change.path for change in migration.changes if change.kind == kind]


DRAFT = {"model": "meta-llama/Llama-3.2-1B-Instruct", "revision": REVISION}


def test_draft_model_carries_over_to_the_llm_api() -> None:
    draft = DRAFT | {"quantization": {"weights": "fp8"}, "parallel": {"tensor": 2}}
    found = migrate(with_method("draft_target", draft_len=5, draft=draft), "1.3")
    newest = version_specs()["1.3"].releases[-1].version
    assert found.document["engine"] == {"backend": "llmapi", "version": newest, "gpu": "h100"}
    assert found.document["speculation"] == {"method": "draft_target", "draft_len": 5, "draft": DRAFT}
    assert kinds(found, "dropped") == ["speculation.draft.parallel", "speculation.draft.quantization"]
    assert found.is_complete
    assert Recipe.model_validate(found.document).engine.backend == "llmapi"


@pytest.mark.parametrize("model", ["Qwen/Qwen2.5-72B-Instruct", "mistralai/Mistral-7B-Instruct-v0.3"])
def test_draft_model_of_a_plain_decoder_does_not_carry_over(model: str) -> None:
    target = {"model": model, "revision": REVISION}
    found = migrate(recipe(target=target, speculation={"method": "draft_target", "draft": DRAFT}), "1.3")
    assert found.document["speculation"] == {"method": "ngram", "draft_len": 4}
    changed = next(change for change in found.changes if change.path == "speculation.method")
    assert changed.kind == "changed"
    assert changed.why.startswith("from 1.3 on draft_target drafts inside the target, but ")
    stays = migrate(recipe(target=target, speculation={"method": "draft_target", "draft": DRAFT}), "1.2.0")
    assert stays.document["speculation"]["method"] == "draft_target"


@pytest.mark.parametrize("method", ["medusa", "eagle", "redrafter"])
def test_removed_method_becomes_eagle3_if_a_head_is_published(method: str) -> None:
    found = migrate(with_method(method, draft={"model": "./part"}), "1.3")
    assert found.document["speculation"] == {
        "method": "eagle3",
        "draft_len": 4,
        "draft": {"model": "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B"},
    }
    assert kinds(found, "open") == ["speculation.draft.revision"]
    assert not found.is_complete
    assert any(f"{method} does not have a successor in the LLM API" in change.why for change in found.changes)


@pytest.mark.parametrize("method", ["medusa", "eagle", "redrafter", "lookahead"])
def test_removed_method_becomes_ngram_without_a_published_head(method: str) -> None:
    given = with_method(method).model_copy(update={"target": recipe(target={"model": "./own"}).target})
    found = migrate(given, "1.3")
    assert found.document["speculation"] == {"method": "ngram", "draft_len": 4}
    assert found.is_complete


def test_gates_of_a_changed_method_are_flagged_for_measurement() -> None:
    found = migrate(recipe(speculation={"method": "lookahead"}, gates={"min_speedup": 1.2}), "1.3")
    assert found.document["gates"] == {"min_speedup": 1.2}
    assert ("kept", "gates", "the limits were set for another method: measure again") in [
        (change.kind, change.path, change.why) for change in found.changes
    ]


def test_migrated_method_is_supported_by_the_llm_api_version() -> None:
    for minor in ("1.3", "1.4"):
        for method in ("none", "draft_target", "ngram", "lookahead", "medusa", "eagle", "eagle3", "redrafter", "mtp"):
            document = migrate(with_method(method), minor).document
            became = document["speculation"]["method"]
            assert became == "none" or became in version_specs()[minor].api.methods
            assert "llmapi" in backends_for_method(became)


def test_trtllm_build_options_are_dropped_with_reasons() -> None:
    engine = {
        "backend": "tensorrt_llm", "version": "1.2.1", "gpu": "h100",
        "extra": {"tokens_per_block": 64, "reduce_fusion": "enable"}, "build": {"timeout_s": 60},
    }  # fmt: skip
    serving = {"fast_logits": True, "placement": {"target": [0], "draft": [1]}}
    found = migrate(recipe(engine=engine, serving=serving), "1.4")
    assert "extra" not in found.document["engine"]
    assert "build" not in found.document["engine"]
    assert found.document["serving"] == {"placement": {"target": [0]}}
    reasons = {change.path: change.why for change in found.changes if change.kind == "dropped"}
    assert reasons["engine.extra.tokens_per_block"].endswith("use kv_cache_config.tokens_per_block")
    assert reasons["engine.extra.reduce_fusion"].endswith("it applies to TensorRT engines")


def test_weight_quantization_is_left_to_the_checkpoint() -> None:
    target = {
        "model": "meta-llama/Llama-3.1-8B-Instruct", "revision": REVISION,
        "quantization": {"weights": "fp8", "kv_cache": "fp8", "calibration": {"samples": 64}},
    }  # fmt: skip
    found = migrate(recipe(target=target), "1.3")
    assert found.document["target"]["quantization"] == {"kv_cache": "fp8"}
    assert kinds(found, "open") == ["target.model"]


def test_option_missing_in_the_new_version_is_dropped() -> None:
    engine = {"backend": "tensorrt_llm", "version": "1.0.0", "extra": {"auto_parallel": 1, "gemm_plugin": "auto"}}
    found = migrate(recipe(engine=engine), "1.2")
    assert found.document["engine"] == {
        "backend": "tensorrt_llm",
        "version": "1.2.1",
        "extra": {"gemm_plugin": "auto"},
    }
    assert kinds(found, "dropped") == ["engine.extra.auto_parallel"]
    dropped = next(change.why for change in found.changes if change.kind == "dropped")
    assert dropped == "not in trtllm-build 1.2; versions with it: 1.0, 1.1"


@pytest.mark.parametrize(
    ("given", "to", "said"),
    [
        (recipe(), "9.9", "no backend has a version 9.9"),
        (recipe(engine={"backend": "vllm"}), "1.3", "the recipe is for vllm, which has no other version to migrate to"),
        (recipe(engine={"backend": "embedded"}), "1.3", "the recipe is for embedded"),
    ],
)
def test_unsupported_migration_is_rejected(given: Recipe, to: str, said: str) -> None:
    with pytest.raises(TrtspecError, match=said):
        migrate(given, to)


@pytest.fixture
def engine_recipe(recipe: Path) -> Path:
    recipe.write_text(recipe.read_text().replace("engine:\n", "engine:\n  backend: tensorrt_llm\n  gpu: h100\n"))
    return recipe


def test_migrate_command_writes_a_recipe_with_adjusted_paths(trtspec: Run, engine_recipe: Path) -> None:
    elsewhere = engine_recipe.parent / "elsewhere"
    elsewhere.mkdir()
    done = trtspec("migrate", engine_recipe, "--to", "1.3", "-o", elsewhere / "new.yaml", "--json")
    assert done.code == 0, done.err
    assert set(done.document) == {"format_version", "recipe", "output", "version", "complete", "changes"}
    assert done.document["complete"] is True
    text = (elsewhere / "new.yaml").read_text()
    assert text.startswith("# recipe.yaml for TensorRT-LLM 1.3")
    assert yaml.safe_load(text)["target"]["model"] == "../target"
    assert trtspec("check", elsewhere / "new.yaml", "--json").document["ok"] is True


def test_migrate_command_overwrites_only_with_force(trtspec: Run, engine_recipe: Path) -> None:
    beside = engine_recipe.with_name("recipe-1.3.yaml")
    beside.write_text("mine")
    refused = trtspec("migrate", engine_recipe, "--to", "1.3")
    assert refused.code == 1
    assert "the file already exists" in refused.err
    assert beside.read_text() == "mine"
    assert trtspec("migrate", engine_recipe, "--to", "1.3", "--force").code == 0
    assert beside.read_text() != "mine"


def test_migrate_command_exits_with_1_if_values_are_open(trtspec: Run, engine_recipe: Path) -> None:
    quantized = engine_recipe.read_text().replace("./target\n", "./target\n  quantization: {weights: fp8}\n")
    engine_recipe.write_text(quantized)
    done = trtspec("migrate", engine_recipe, "--to", "1.3")
    assert done.code == 1
    assert "fill in the open values, then run trtspec check" in done.out


def test_migration_from_engines_mentions_edge_llm() -> None:
    moved = next(change for change in migrate(with_method("none"), "1.3").changes if change.path == "engine.backend")
    assert moved.why.endswith("; for TensorRT engines: --backend edge_llm")


def test_engine_recipe_migrates_to_edge_llm() -> None:
    engine = {
        "backend": "tensorrt_llm", "version": "1.2.1", "gpu": "rtx5090", "max_num_tokens": 4096,
        "extra": {"gemm_plugin": "auto"}, "build": {"timing_cache": "cache"},
    }  # fmt: skip
    target = recipe().target.model_dump(exclude_unset=True) | {"quantization": {"weights": "fp8"}}
    found = migrate(recipe(engine=engine, target=target), backend="edge_llm")
    assert found.document["engine"] == {"backend": "edge_llm", "version": "0.11.0", "gpu": "rtx5090"}
    assert found.document["target"]["quantization"] == {"weights": "fp8"}, "it quantizes too"
    assert kinds(found, "dropped") == [
        "engine.extra.gemm_plugin",
        "engine.build.timing_cache",
        "engine.max_num_tokens",
    ]
    assert found.is_complete
    assert Recipe.model_validate(found.document).engine.backend == "edge_llm"


def test_unsupported_gpu_and_missing_head_are_left_open() -> None:
    found = migrate(with_method("medusa", draft={"model": "./heads"}), backend="edge_llm")
    assert found.document["speculation"] == {"method": "eagle3", "draft_len": 4}
    assert "gpu" not in found.document["engine"]
    assert kinds(found, "open") == ["engine.gpu", "speculation.draft.model"]
    gpus = next(change.why for change in found.changes if change.kind == "open")
    assert "rtx5090" in gpus
    assert "dgx-spark" in gpus
    assert "h200" not in gpus


def test_migration_to_an_unsupported_backend_is_rejected() -> None:
    with pytest.raises(TrtspecError, match=r"(?s)recipes cannot be migrated to vllm.*edge_llm"):
        migrate(recipe(), backend="vllm")


def test_migrate_command_requires_a_version_or_a_backend(trtspec: Run, engine_recipe: Path) -> None:
    assert "add --to VERSION, --backend NAME or both" in trtspec("migrate", engine_recipe).err
    moved = trtspec("migrate", engine_recipe, "--backend", "edge_llm")
    assert moved.code == 1, "the GPU and the net are to be filled in"
    written = engine_recipe.with_name("recipe-edge_llm.yaml").read_text()
    assert written.startswith("# recipe.yaml for edge_llm 0.11.0")
