# SPDX-License-Identifier: Apache-2.0
"""Edge-LLM: arguments of its commands and its Python API for each method, and rejected recipes."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests._support import gemma4
from tests.backends.edge_llm.cases import ASSISTANT, GEMMA, LATE, METHODS, MTP, case
from tests.backends.source_contexts import FP8, facts, said
from trtspec.backends.base import backends, choose_version
from trtspec.backends.edge_llm import BACKEND
from trtspec.backends.edge_llm.arguments import (
    build_command,
    export_arguments,
    exported_roles,
    model_json,
    quantize_arguments,
)
from trtspec.backends.edge_llm.toolchain import releases
from trtspec.core.gpus import GPUS, DetectedGpu
from trtspec.recipe.schema import Quantization

TREE = {"top_k": 4, "nodes": 12}


def found(method: str = "none", **changes: Any) -> dict[str, Any]:
    return said(BACKEND.check(case(method, **changes)))


def errors(method: str = "none", **changes: Any) -> list[str]:
    return [key for key, each in found(method, **changes).items() if each.severity == "error"]


def options(argv: tuple[str, ...]) -> dict[str, str]:
    return {word: after for word, after in pairwise(argv) if word.startswith("--")}


def test_default_release_has_a_source_and_its_supported_gpus() -> None:
    assert choose_version(backends()["edge_llm"], None) == "0.11.0"
    release = releases()["0.11.0"]
    assert release.source.startswith("NVIDIA/TensorRT-Edge-LLM:")
    assert release.sms == [80, 86, 87, 100, 110, 120, 121]
    assert not release.tensorrt_for(90)
    assert release.tensorrt_for(121) == ["10.16.1.11"]


@pytest.mark.parametrize("method", METHODS)
def test_every_method_is_accepted_with_default_settings(method: str) -> None:
    assert errors(method) == []


@pytest.mark.parametrize(
    ("method", "changes", "spec_type", "verify", "draft"),
    [
        ("none", {}, "none", None, None),
        ("eagle3", {}, "eagle3", "6", "5"),
        ("eagle3", {"speculation__options": TREE}, "eagle3", "13", "20"),
        ("mtp", {}, "mtp", "4", "3"),
        ("dflash", {}, "dflash", "8", "8"),
        ("dspark", {}, "dspark", "8", "7"),
        ("dspark", {"draft_facts": LATE}, "dspark", "8", "8"),
        ("gemma4_mtp", {}, "gemma4_mtp", "4", "3"),
    ],
)
def test_build_command_has_the_options_of_the_method(method, changes, spec_type, verify, draft) -> None:
    told = options(build_command(case(method, **changes)))
    assert (told["--spec-type"], told.get("--max-verify-tree-size"), told.get("--max-draft-tree-size")) == (
        spec_type,
        verify,
        draft,
    )
    assert told.get("--draft-model-dir") == (None if method in ("none", "mtp") else "checkpoints/draft")
    assert (told["--max-kv-cache-capacity"], told["--max-input-len"], told["--max-batch-size"]) == ("2048", "1024", "1")


@pytest.mark.parametrize(
    ("method", "tokens", "steps"),
    [("eagle3", 5, 5), ("mtp", 3, 3), ("dflash", 8, None), ("dspark", 7, None), ("gemma4_mtp", 3, 3)],
)
def test_model_json_has_the_draft_length_of_the_method(method: str, tokens: int, steps: int | None) -> None:
    llm = model_json(case(method))["llm"]
    assert llm["speculative_config"]["method"] == method.removeprefix("gemma4_")
    assert llm["speculative_config"]["num_speculative_tokens"] == tokens
    assert llm.get("draft_step") == steps
    assert llm["verify_tree_size"] == llm["max_verify_tree_size"]
    assert not llm["enable_in_flight_batching"]
    assert ("model" in llm["speculative_config"]) == (method != "mtp")


def test_in_flight_batching_is_enabled_without_drafting() -> None:
    assert model_json(case())["llm"]["enable_in_flight_batching"]


@pytest.mark.parametrize(
    ("role", "method", "words"),
    [
        ("target", "none", "checkpoints/target onnx/target"),
        ("target", "eagle3", "checkpoints/target onnx/target --eagle-base --eagle-draft-dir checkpoints/draft"),
        ("draft", "eagle3", "checkpoints/draft onnx/draft"),
        ("target", "mtp", "checkpoints/target onnx/target --mtp"),
        (
            "target",
            "gemma4_mtp",
            "checkpoints/target onnx/target --mtp --mtp-draft-dir checkpoints/draft --components thinker,mtp_draft",
        ),
        ("target", "dflash", "checkpoints/target onnx/target --dflash-base --dflash-draft-dir checkpoints/draft"),
        ("draft", "dspark", "checkpoints/target onnx/draft --dspark-draft --dspark-draft-dir checkpoints/draft"),
    ],
)
def test_export_arguments_match_the_role_and_method(role: str, method: str, words: str) -> None:
    tail = "--dtype float16 --int4-gemm-plugin-version 2 --target-sm 110"
    assert " ".join(export_arguments(role, method, 110)) == f"tensorrt-edgellm-export {words} {tail}"


def test_quantize_arguments_contain_device_formats_and_samples() -> None:
    argv = quantize_arguments("draft", Quantization(weights="fp8", kv_cache="fp8"), "cpu")
    told = options(argv)
    assert argv[1] == "draft"
    assert (told["--base_model_dir"], told["--draft_model_dir"]) == ("sources/target", "sources/draft")
    assert (told["--quantization"], told["--kv_cache_quantization"], told["--device"]) == ("fp8", "fp8", "cpu")
    assert told["--num_samples"] == "128"


@pytest.mark.parametrize(
    ("changes", "key", "message"),
    [
        ({"engine__gpu": None}, "engine.gpu missing-key", "an engine is built for one GPU"),
        ({"engine__gpu": "h100"}, "engine.gpu gpu", "Edge-LLM 0.11.0 does not support h100, compute capability 9.0"),
        ({"engine__gpu": "l4"}, "engine.gpu gpu", "Edge-LLM 0.11.0 does not support l4, compute capability 8.9"),
        ({"target__dtype": "bfloat16"}, "target.dtype not-supported", "Edge-LLM computes in float16"),
        ({"target__parallel__tensor": 2}, "target.parallel parallel", "this backend runs Edge-LLM on one GPU"),
        ({"target_facts": facts({"model_type": "phi3"})}, "target.model family", "does not support phi3"),
        (
            {"target__quantization__weights": "fp8_rowwise"},
            "target.quantization.weights quantization",
            "fp8_rowwise weights of the target",
        ),
        (
            {"target__quantization__weights": "fp8", "engine__gpu": "jetson-orin"},
            "engine.gpu quantization",
            "which jetson-orin does not support; it supports only FP16, INT8 and INT4",
        ),
        (
            {"target__quantization__exclude": ["*.fc"]},
            "target.quantization.exclude not-supported",
            "every layer except the head",
        ),
        (
            {"engine__build__image": "x@sha256:" + "0" * 64},
            "engine.build.image not-supported",
            "Edge-LLM's builder does not support image",
        ),
    ],
)
def test_unsupported_recipe_is_an_error_with_its_reason(changes: dict[str, Any], key: str, message: str) -> None:
    diagnostic = found(**changes)[key]
    assert diagnostic.severity == "error"
    assert message in diagnostic.message


@pytest.mark.parametrize("gpu", ["a100-80gb", "rtx3090", "jetson-thor", "b200", "rtxpro6000", "dgx-spark"])
def test_supported_gpu_is_accepted(gpu: str) -> None:
    assert errors(engine__gpu=gpu) == []


def test_mtp_requires_a_supported_target_with_mtp_layers() -> None:
    assert "speculation.method version" in found("mtp", target_facts=facts({"model_type": "llama"}))
    assert "speculation.method no-draft" in found("mtp", target_facts=facts({"model_type": "nemotron_h"}))
    assert errors("mtp", target_facts=MTP) == []


def test_assistant_is_exported_with_its_target_and_drafts_for_every_request() -> None:
    context = case("gemma4_mtp")
    assert exported_roles(context) == ("target",)
    assert exported_roles(case("eagle3")) == ("target", "draft")
    assert model_json(context)["always_drafts"]
    assert "always_drafts" not in model_json(case("mtp"))
    warned = found("gemma4_mtp")["speculation.method greedy-only"]
    assert (warned.severity, warned.message.split(":")[0]) == ("warning", "sampled requests are rejected")


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"target_facts": facts()}, "target.model family"),
        ({"draft_facts": replace(ASSISTANT, config=gemma4.TARGET)}, "speculation.draft.model class"),
        ({"draft_facts": replace(ASSISTANT, root=Path("/nowhere"))}, "speculation.draft.model missing-tokenizer"),
        (
            {"draft_facts": replace(ASSISTANT, config=gemma4.changed(gemma4.ASSISTANT, num_kv_shared_layers=2))},
            "speculation.draft.model layout",
        ),
    ],
)
def test_unsupported_assistant_is_an_error(changes: dict[str, Any], key: str) -> None:
    assert key in errors("gemma4_mtp", **changes)


@pytest.mark.parametrize(
    ("changes", "draft_len", "expected"),
    [
        ({}, 15, []),
        ({}, 7, ["speculation.draft_len block-size"]),
        ({"selector_rank": 128}, 15, ["speculation.draft.model sizes"]),
        ({"is_causal": True}, 15, ["speculation.draft.model sizes"]),
        ({"architectures": ["DFlashDraftModel"]}, 15, ["speculation.draft.model variant"]),
    ],
)
def test_dflash2_net_has_the_sizes_that_the_builder_takes(changes, draft_len: int, expected: list[str]) -> None:
    config = {"architectures": ["DFlash2DraftModel"], "block_size": 16, "is_causal": False, "conv_kernel_size": 2}
    config |= {"conv_group_size": 16, "selector_rank": 256, "selector_top_k": 16, "target_layer_ids": [1, 2, 3, 4, 5]}
    assert errors("dflash", draft_facts=facts(config | changes), speculation__draft_len=draft_len) == expected


def test_xpress_net_is_refused_with_the_engine_that_runs_it() -> None:
    net = facts({"architectures": ["Qwen3XPressModel"], "block_size": 16})
    assert "vLLM from 0.33" in found("dflash", draft_facts=net)["speculation.draft.model variant"].hint


def test_target_of_an_assistant_is_refused_without_one() -> None:
    assert errors(target_facts=GEMMA) == ["target.model family"]


def test_drafter_layers_are_checked_against_the_exported_layers() -> None:
    assert "speculation.draft.model aux-layers" not in found("eagle3", layers=(2, 16, 29))
    warned = found("eagle3", layers=(1, 16, 29))["speculation.draft.model aux-layers"]
    assert warned.severity == "warning"
    assert warned.message == "the target's exported ONNX provides layers 2, 16, 29, but the drafter reads 1, 16, 29"
    assert "speculation.draft.model aux-layers" in errors("eagle3", layers=(2, 16, 32))


def test_drafting_warns_about_batch_size_and_notes_greedy_only() -> None:
    warned = found("eagle3", engine__max_batch_size=4)
    assert warned["engine.max_batch_size unused"].severity == "warning"
    assert warned["speculation.method greedy-only"].severity == "note"
    assert found(engine__max_batch_size=4) == {}


def test_fp8_source_is_accepted_without_quantization() -> None:
    assert errors(target_facts=facts({}, FP8)) == []


def test_unified_memory_gpu_is_identified_by_name_and_capability() -> None:
    spark = DetectedGpu("NVIDIA GB10", 121, "580.95.05", 0)
    assert spark.kind is GPUS["dgx-spark"]


def test_documentation_lists_exactly_the_supported_gpus() -> None:
    page = (Path(__file__).parents[3] / "docs" / "edge-llm.md").read_text(encoding="utf-8")
    release = releases()["0.11.0"]
    rows = dict(re.findall(r"^\| (\d+\.\d) \| ([^|]+) \|", page, re.MULTILINE))
    assert [int(sm.replace(".", "")) for sm in rows] == release.sms
    for sm, names in rows.items():
        known = [gpu.name for gpu in GPUS.values() if gpu.sm == int(sm.replace(".", ""))]
        assert sorted(names.split(", ")) == sorted(known)
