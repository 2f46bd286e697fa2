# SPDX-License-Identifier: Apache-2.0
"""The LLM API: the configuration of each method in a version's spelling, rejected recipes, and GPU memory."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from tests.backends.source_contexts import FP8, facts, said, source_context
from tests.checkpoints.quant.compressed import compressed_tensors
from tests.serving.triton.fakes import load_model, make_pb_utils
from trtspec.backends.base import backends, choose_version, find_backend
from trtspec.backends.common.trtllm_versions import find_version_spec
from trtspec.backends.context import PlanContext
from trtspec.backends.llmapi import BACKEND, artifact, installed
from trtspec.backends.llmapi.arguments import is_greedy_only, model_yaml, speculative_config
from trtspec.backends.llmapi.installed import validate_installed
from trtspec.backends.llmapi.methods import find_method
from trtspec.checkpoints.safetensors import TensorInfo
from trtspec.core.errors import TrtspecError
from trtspec.methods.base import methods

DOUBLE = Path(__file__).parents[2] / "doubles" / "tensorrt_llm_api"
DRAFT = "../../checkpoints/draft"
TREE = {"top_k": 4, "nodes": 12}
SCHEDULE = [{"max_batch": 2, "draft_len": 6}, {"max_batch": 4, "draft_len": 3}, {"max_batch": 8, "draft_len": 0}]
MTP = facts({"model_type": "deepseek_v3", "num_nextn_predict_layers": 1})


def case(version: str = "1.2.1", method: str = "none", **changes: Any) -> PlanContext:
    return source_context("llmapi", version, method, **changes)


def diagnostics(*arguments: Any, **changes: Any) -> dict[str, Any]:
    return said(BACKEND.check(case(*arguments, **changes)))


def test_default_version_is_the_newest_release_and_candidates_are_selectable() -> None:
    backend = backends()["llmapi"]
    assert (backend.package, backend.converts) == ("tensorrt_llm", False)
    assert choose_version(backend, None) == "1.2.1"
    assert choose_version(backend, "1.0") == "1.0.3.2510"
    assert choose_version(backend, "1.3").startswith("1.3.0rc")


@pytest.mark.parametrize(
    ("version", "method", "changes", "expected"),
    [
        ("1.2.1", "none", {}, {}),
        (
            "1.0.0",
            "draft_target",
            {"speculation__draft_len": 5},
            {"decoding_type": "DraftTarget", "max_draft_len": 5, "speculative_model_dir": DRAFT},
        ),
        (
            "1.3.0rc27",
            "draft_target",
            {"speculation__draft_len": 5},
            {"decoding_type": "Draft_Target", "max_draft_len": 5, "speculative_model": DRAFT},
        ),
        (
            "1.2.1",
            "ngram",
            {"speculation__draft_len": 8, "speculation__options": {"max_match": 4}},
            {"decoding_type": "NGram", "max_draft_len": 8, "max_matching_ngram_size": 4, "is_public_pool": False},
        ),
        (
            "1.1.0",
            "eagle3",
            {"speculation__draft_len": 3},
            {"decoding_type": "Eagle", "max_draft_len": 3, "speculative_model_dir": DRAFT},
        ),
        (
            "1.3.0rc27",
            "eagle3",
            {"speculation__draft_len": 3, "speculation__options": TREE},
            {
                "decoding_type": "Eagle3",
                "max_draft_len": 3,
                "speculative_model": DRAFT,
                "use_dynamic_tree": True,
                "dynamic_tree_max_topK": 4,
                "max_total_draft_tokens": 12,
            },
        ),
        ("1.2.1", "mtp", {"speculation__draft_len": 2}, {"decoding_type": "MTP", "num_nextn_predict_layers": 2}),
        (
            "1.3.0rc27",
            "pard",
            {"speculation__draft_len": 6, "draft_facts": facts({"pard_token": 128002})},
            {"decoding_type": "PARD", "max_draft_len": 6, "speculative_model": DRAFT, "mask_token_id": 128002},
        ),
        (
            "1.4.0rc1",
            "dflash",
            {"speculation__draft_len": 7},
            {"decoding_type": "DFlash", "max_draft_len": 7, "speculative_model": DRAFT},
        ),
        (
            "1.3.0rc29",
            "dspark",
            {"speculation__draft_len": 7},
            {"decoding_type": "DSpark", "max_draft_len": 7, "speculative_model": DRAFT},
        ),
        (
            "1.3.0rc27",
            "suffix",
            {"speculation__draft_len": 12},
            {"decoding_type": "SA", "max_draft_len": 12, "max_matching_ngram_size": -1, "enable_global_pool": True},
        ),
        (
            "1.4.0rc1",
            "suffix",
            {"speculation__draft_len": 12, "speculation__options": {"max_cached_requests": 64}},
            {
                "decoding_type": "SA",
                "max_draft_len": 12,
                "max_matching_ngram_size": -1,
                "enable_global_pool": True,
                "global_pool_size": 64,
            },
        ),
        (
            "1.3.0rc27",
            "draft_target",
            {"speculation__draft_len": 5, "speculation__options": {"use_draft_logits": True}},
            {
                "decoding_type": "Draft_Target",
                "max_draft_len": 5,
                "speculative_model": DRAFT,
                "use_rejection_sampling": True,
            },
        ),
        ("1.3.0rc27", "mtp", {"speculation__draft_len": 2}, {"decoding_type": "MTP", "max_draft_len": 2}),
    ],
)
def test_speculative_config_uses_the_spelling_of_its_version(version: str, method: str, changes, expected) -> None:
    assert speculative_config(case(version, method, **changes), DRAFT) == expected


@pytest.mark.parametrize(
    ("version", "schedule", "fields"),
    [
        ("1.3.0rc27", SCHEDULE, {"draft_len_schedule": {2: 6, 4: 3}}),
        ("1.2.1", SCHEDULE, {"draft_len_schedule": {1: 6, 3: 3, 5: 0}}),
        ("1.4.0rc1", SCHEDULE[:1], {"max_concurrency": 2}),
        ("1.1.0", SCHEDULE[:1], {"max_concurrency": 2}),
        ("1.0.0", [], {}),
    ],
)
def test_schedule_is_converted_to_the_format_of_its_version(
    version: str, schedule: Any, fields: dict[str, Any]
) -> None:
    asked = case(version, "ngram", speculation__draft_len=6, speculation__schedule=schedule)
    config = speculative_config(asked, None)
    assert {key: config[key] for key in config.keys() & {"draft_len_schedule", "max_concurrency"}} == fields
    assert "speculation.schedule version" not in said(BACKEND.check(asked))


def test_acceptance_threshold_has_a_window_size() -> None:
    asked = {"speculation__acceptance_rate_threshold": 0.4}
    config = speculative_config(case("1.3.0rc27", "ngram", **asked), None)
    assert (config["acceptance_rate_threshold"], config["acceptance_rate_window_size"]) == (0.4, 1000)
    config = speculative_config(case("1.3.0rc27", "ngram", **asked, speculation__acceptance_window=50), None)
    assert config["acceptance_rate_window_size"] == 50


def test_pard_step_verifies_twice_the_draft_length() -> None:
    asked = case("1.3.0rc27", "pard", speculation__draft_len=8, engine__max_num_tokens=63)
    found = said(BACKEND.check(asked))["engine.max_num_tokens out-of-range"]
    assert found.message == "max_num_tokens 63 is less than max_batch_size 4 times 16 tokens to verify"


@pytest.mark.parametrize("version", ["1.1.0", "1.2.1"])
def test_eagle3_with_a_plain_decoder_runs_as_a_separate_model(version: str) -> None:
    """Its class drafts nothing inside, and verification outside is exact too."""
    plain = case(version, "eagle3", target="qwen2.5-7b")
    assert speculative_config(plain, DRAFT)["eagle3_one_model"] is False
    assert "eagle3_one_model" not in speculative_config(case(version, "eagle3"), DRAFT)
    assert "speculation.method architecture" not in said(BACKEND.check(plain))


@pytest.mark.parametrize(
    ("version", "method", "hint"),
    [
        ("1.3.0rc27", "draft_target", "engine.version: 1.2, or method: ngram"),
        ("1.0.0", "eagle3", "engine.version: 1.2, or method: ngram"),
    ],
)
def test_unsupported_method_for_a_plain_decoder_hints_at_alternatives(version: str, method: str, hint: str) -> None:
    found = said(BACKEND.check(case(version, method, target="qwen2.5-7b", draft="qwen2.5-7b")))
    assert found["speculation.method architecture"].hint == hint


@pytest.mark.parametrize(
    ("version", "known"),
    [("1.3.0rc28", "1.3.0rc27"), ("1.3.0", "1.3.0rc29"), ("1.4.0rc0", "1.4.0rc1"), ("1.4.0", "1.4.0rc1")],
)
def test_unknown_candidate_is_spelled_as_the_nearest_known_one(version: str, known: str) -> None:
    changes: dict[str, Any] = {"speculation__draft_len": 3}
    config = speculative_config(case(version, "eagle3", **changes), DRAFT)
    assert config == speculative_config(case(known, "eagle3", **changes), DRAFT)


@pytest.mark.parametrize("version", ["1.3.0rc29", "1.4.0rc1"])
@pytest.mark.parametrize(
    ("architecture", "severity"),
    [
        ("LlamaForCausalLM", None),
        ("Qwen3MoeForCausalLM", None),
        ("Gemma3ForConditionalGeneration", "error"),
        ("Gemma4ForCausalLM", "error"),
        ("Mistral3ForConditionalGeneration", "warning"),
        ("Cohere2ForCausalLM", "warning"),
    ],
)
def test_target_class_must_draft_inside(version: str, architecture: str, severity: str | None) -> None:
    """Published Gemma 3 checkpoints from 4B on have the multimodal class; unknown classes cause a warning."""
    context = replace(case(version, "suffix"), target=None)
    context = replace(context, sources={**context.sources, "target": facts({"architectures": [architecture]})})
    found = said(BACKEND.check(context)).get("speculation.method architecture")
    assert (found.severity if found else None) == severity


def test_unknown_target_class_needs_no_word_for_drafts_outside_it() -> None:
    asked = case("1.4.0rc1", "ngram", target_facts=facts({"architectures": ["Cohere2ForCausalLM"]}))
    assert "speculation.method architecture" not in said(BACKEND.check(asked))


@pytest.mark.parametrize(
    "config", [{"block_size": 15}, {"dflash_config": {"block_size": 15}}, {"dspark_config": {"block_size": 15}}]
)
def test_dspark_drafts_its_whole_block(config: dict[str, Any]) -> None:
    def found(draft_len: int) -> Any:
        asked = case("1.4.0rc1", "dspark", speculation__draft_len=draft_len, draft_facts=facts(config))
        return said(BACKEND.check(asked)).get("speculation.draft_len block-size")

    assert found(15) is None
    for draft_len in (4, 7):
        message = f"the LLM API drafts a DSpark net's whole block, 15 tokens, not {draft_len}"
        assert found(draft_len).message == message
        assert found(draft_len).hint == "set speculation.draft_len: 15"


@pytest.mark.parametrize(
    "config",
    [
        {"architectures": ["DFlash2DraftModel"]},
        {"architectures": ["MiniMaxDFlash2DraftModel"]},
        {"architectures": ["DFlashDraftModel"], "conv_kernel_size": 2},
        {"architectures": ["Qwen3XPressModel"]},
        {"architectures": ["DFlashDraftModel"], "dflash_config": {"selector_rank": 256}},
    ],
)
@pytest.mark.parametrize("version", ["1.3.0rc29", "1.4.0rc1"])
def test_variant_of_dflash_is_not_taken_for_dflash(version: str, config: dict[str, Any]) -> None:
    found = diagnostics(version, "dflash", speculation__draft_len=7, draft_facts=facts(config))
    said = found["speculation.draft.model class"]
    net, first = ("an XPress", "0.33") if "XPress" in str(config) else ("a DFlash2", "0.28")
    assert f"is {net} net" in said.message
    assert f"vLLM from {first}" in said.hint
    plain = diagnostics(version, "dflash", speculation__draft_len=7, draft_facts=facts({"block_size": 8}))
    assert "speculation.draft.model class" not in plain


@pytest.mark.parametrize("version", BACKEND.versions())
@pytest.mark.parametrize("method", sorted(BACKEND.methods().keys() - {"none"}))
def test_speculative_config_has_only_the_fields_of_its_contract(version: str, method: str) -> None:
    if (kind := find_version_spec(version).api.methods.get(method)) is None:
        assert "speculation.method method" in diagnostics(version, method)
        return
    knobs = {"speculation__acceptance_rate_threshold": 0.5, "speculation__schedule": SCHEDULE}
    config = speculative_config(case(version, method, **(knobs if "draft_len_schedule" in kind.lengths else {})), DRAFT)
    assert config.pop("decoding_type") == kind.name
    assert {*kind.required} <= {*config} <= {*find_version_spec(version).api.fields(method, version)}


def test_model_yaml_contains_all_llm_arguments() -> None:
    document = model_yaml(
        case(
            "1.3.0rc27",
            "eagle3",
            speculation__draft_len=3,
            target__parallel={"tensor": 2},
            target__dtype="bfloat16",
            target__quantization={"kv_cache": "fp8"},
            serving__kv_cache_fraction=0.8,
            serving__streaming=False,
            engine__max_input_len=512,
            engine__max_seq_len=1024,
        ),
        "../../checkpoints/target",
        DRAFT,
    )
    assert document == {
        "model": "../../checkpoints/target",
        "backend": "pytorch",
        "dtype": "bfloat16",
        "tensor_parallel_size": 2,
        "pipeline_parallel_size": 1,
        "max_batch_size": 4,
        "max_input_len": 512,
        "max_seq_len": 1024,
        "max_num_tokens": 8192,
        "kv_cache_config": {"free_gpu_memory_fraction": 0.8, "enable_block_reuse": True, "dtype": "fp8"},
        "speculative_config": {"decoding_type": "Eagle3", "max_draft_len": 3, "speculative_model": DRAFT},
        "triton_config": {"max_batch_size": 4, "decoupled": False},
    }


@pytest.mark.parametrize("version", BACKEND.versions())
@pytest.mark.parametrize(
    ("sizes", "chunked"),
    [
        ({"engine__max_input_len": 32000, "engine__max_seq_len": 40000}, True),
        ({"engine__max_input_len": 60000, "engine__max_seq_len": 64000, "engine__max_num_tokens": 4096}, True),
        ({"engine__max_input_len": 32000, "engine__max_seq_len": 40000, "engine__max_num_tokens": 32000}, False),
        ({"engine__max_input_len": 8192, "engine__max_seq_len": 16384}, False),
    ],
)
def test_prompts_beyond_a_step_are_processed_in_chunks(version: str, sizes: dict[str, int], chunked: bool) -> None:
    """Otherwise the LLM API rejects each of them: it should not exceed max_num_tokens."""
    document = model_yaml(case(version, **sizes), "../../checkpoints/target", None)
    assert document.get("enable_chunked_prefill", False) is chunked


@pytest.mark.parametrize(
    ("version", "code"),
    [("1.1.0", ["version"]), ("1.2.1", ["grammar"]), ("1.3.0rc29", []), ("1.4.0rc1", [])],
)
def test_structured_output_starts_a_grammar_backend_from_1_2_on(version: str, code: list[str]) -> None:
    context = case(version, "ngram", serving__structured_output=True)
    assert model_yaml(context, "../../checkpoints/target", None)["guided_decoding_backend"] == "xgrammar"
    assert "guided_decoding_backend" not in model_yaml(case(version, "ngram"), "../../checkpoints/target", None)
    assert [each.code for each in BACKEND.check(context) if each.path == "serving.structured_output"] == code


def test_model_yaml_has_the_revision_of_a_hub_id() -> None:
    revision = "0" * 40
    asked = case(target__model="org/model", target__revision=revision)
    assert model_yaml(asked, "org/model", None)["revision"] == revision
    assert "revision" not in model_yaml(asked, "../../checkpoints/target", None)


@pytest.mark.parametrize(
    ("version", "method", "greedy_only"),
    [
        ("1.0.0", "none", True),
        ("1.0.3.2510", "ngram", True),
        ("1.1.0", "none", False),
        ("1.1.0", "ngram", False),
        ("1.1.0", "draft_target", True),
        ("1.2.1", "ngram", False),
        ("1.2.1", "draft_target", True),
        ("1.2.1", "eagle3", True),
        ("1.2.1", "mtp", True),
        ("1.3.0rc27", "draft_target", False),
        ("1.3.0rc27", "eagle3", False),
        ("1.4.0rc1", "mtp", False),
    ],
)
def test_greedy_only_version_and_method_cause_a_warning(version, method, greedy_only) -> None:
    asked = case(version, method, target_facts=MTP)
    assert is_greedy_only(asked) is greedy_only
    found = said(BACKEND.check(asked)).get("speculation.method greedy-only")
    assert (found is not None) is greedy_only
    if found:
        assert found.severity == "warning"
        assert found.message == (
            f"TensorRT-LLM {version} does not sample from the target's distribution with method {method}"
        )


REFUSED = [
    (
        {"method": "eagle"},
        "speculation.method method",
        "the LLM API of TensorRT-LLM 1.2.1 does not support eagle",
    ),
    (
        {"method": "eagle3", "speculation__options": TREE},
        "speculation.options.top_k version",
        "the PyTorch backend drafts trees only from 1.3 on; 1.2.1 drafts a chain",
    ),
    (
        {"version": "1.3.0rc27", "method": "eagle3", "speculation__draft_len": 2, "speculation__options": TREE},
        "speculation.options.nodes out-of-range",
        "the tree has 12 nodes, but the LLM API supports at most top_k * draft_len = 8",
    ),
    (
        {"method": "draft_target", "speculation__options": {"stop_below": 0.3}},
        "speculation.options.stop_below not-supported",
        "the LLM API always drafts draft_len tokens",
    ),
    (
        {"method": "draft_target", "speculation__options": {"use_draft_logits": False}},
        "speculation.options.use_draft_logits not-supported",
        "the LLM API decides itself whether drafts are verified with their logits",
    ),
    (
        {"version": "1.3.0rc27", "method": "eagle3", "speculation__options": {**TREE, "lossy": True}},
        "speculation.options.lossy lossy",
        "the PyTorch backend accepts exactly; only TensorRT engines support typical acceptance",
    ),
    (
        {"method": "suffix"},
        "speculation.method method",
        "the LLM API of TensorRT-LLM 1.2.1 does not support suffix",
    ),
    (
        {"method": "eagle3", "speculation__draft_len": 6, "speculation__schedule": SCHEDULE},
        "speculation.schedule version",
        "TensorRT-LLM 1.2.1 does not adapt the draft length of eagle3 to the number of requests",
    ),
    (
        {
            "version": "1.3.0rc27",
            "method": "eagle3",
            "speculation__draft_len": 6,
            "speculation__options": TREE,
            "speculation__schedule": SCHEDULE,
        },
        "speculation.schedule not-supported",
        "the LLM API can shorten only chains, but the method drafts a tree",
    ),
    (
        {"method": "ngram", "speculation__acceptance_rate_threshold": 0.5},
        "speculation.acceptance_rate_threshold version",
        "TensorRT-LLM 1.2.1 does not support acceptance_rate_threshold",
    ),
    (
        {"version": "1.3.0rc27", "method": "suffix", "speculation__options": {"max_cached_requests": 2000}},
        "speculation.options.max_cached_requests out-of-range",
        "the LLM API caches 4 (max_batch_size) to 1024 texts",
    ),
    ({"method": "mtp"}, "speculation.method no-draft", "the target lacks MTP layers"),
    (
        {
            "method": "mtp",
            "speculation__draft_len": 3,
            "target_facts": facts({"model_type": "deepseek_v3", "num_nextn_predict_layers": 2}),
        },
        "speculation.draft_len out-of-range",
        "the target has 2 MTP layers, one for each draft token",
    ),
    (
        {"version": "1.3.0rc27", "method": "draft_target", "target": "gemma-3-4b", "draft": "gemma-3-4b"},
        "speculation.method architecture",
        "TensorRT-LLM 1.3.0rc27 drafts inside the target, but Gemma3ForCausalLM is a plain decoder",
    ),
    (
        {"version": "1.4.0rc1", "method": "eagle3", "target": "qwen2.5-7b"},
        "speculation.method architecture",
        "TensorRT-LLM 1.4.0rc1 drafts inside the target, but Qwen2ForCausalLM is a plain decoder",
    ),
    (
        {"version": "1.2.1", "method": "eagle3", "target": "mixtral-8x7b"},
        "speculation.method architecture",
        "TensorRT-LLM 1.2.1 drafts inside the target, but MixtralForCausalLM is a plain decoder",
    ),
    (
        {"method": "eagle3", "draft_facts": facts({"speculators_model_type": "eagle3"})},
        "speculation.draft.model layout",
        "the head is in the format of speculators; the LLM API expects its sizes at the top of config.json",
    ),
    (
        {"version": "1.3.0rc27", "method": "dflash", "draft_facts": facts({"speculators_model_type": "dflash"})},
        "speculation.draft.model layout",
        "the head is in the format of speculators; the LLM API expects its sizes at the top of config.json",
    ),
    (
        {"target__quantization": {"weights": "fp8"}},
        "target.quantization.weights quantization",
        "fp8 weights are requested, but the target is not quantized",
    ),
    (
        {"target__quantization": {"weights": "fp8_rowwise"}, "target_facts": facts(quantization=FP8)},
        "target.quantization.weights quantization",
        "fp8_rowwise weights are requested, but the target is fp8",
    ),
    (
        {"target_facts": facts(quantization=FP8), "engine__gpu": "a100-80gb"},
        "engine.gpu quantization",
        "the target is fp8, but a100-80gb does not support FP8",
    ),
    (
        {
            "method": "draft_target",
            "target__parallel": {"tensor": 4},
            "speculation__draft": {"model": "./draft", "parallel": {"tensor": 2}},
        },
        "speculation.draft.parallel parallel",
        "the draft uses the target's parallelism, 4 GPUs",
    ),
    (
        {"method": "draft_target", "draft": "qwen2.5-7b"},
        "speculation.draft.model vocabulary",
        "the draft has 152064 vocabulary entries, the target 128256: this engine runs both unchanged and cannot pad "
        "the smaller one",
    ),
    (
        {"target__parallel": {"tensor": 2}, "serving__placement": {"target": [0]}},
        "serving.placement.target placement",
        "the target is divided over 2 GPUs but placed on 1",
    ),
    (
        {"method": "draft_target", "serving__placement": {"target": [0], "draft": [1]}},
        "serving.placement.draft placement",
        "this engine loads the draft on the target's GPUs",
    ),
    (
        {"version": "1.0.0", "method": "ngram", "serving__structured_output": True},
        "serving.structured_output version",
        "TensorRT-LLM 1.0.0 does not support structured output with speculation",
    ),
]


@pytest.mark.parametrize(("changes", "key", "message"), REFUSED, ids=[key for _, key, _ in REFUSED])
def test_unsupported_setting_is_an_error(changes: dict[str, Any], key: str, message: str) -> None:
    found = diagnostics(**changes)[key]
    assert (found.severity, found.message) == ("error", message)


WARNED = [
    (
        {"method": "eagle3", "draft_facts": facts({"norm_before_fc": True, "fc_norm": False})},
        "speculation.draft.model layout-norm_before_fc",
        "the head has norm_before_fc, which the LLM API may not support",
    ),
    (
        {"version": "1.3.0rc27", "method": "suffix", "speculation__options": {"min_token_prob": 0.2}},
        "speculation.options.min_token_prob unused",
        "the LLM API's suffix automaton does not support min_token_prob: it drafts what follows the longest match",
    ),
    (
        {
            "version": "1.3.0rc27",
            "method": "ngram",
            "speculation__acceptance_rate_threshold": 0.5,
            "speculation__acceptance_window": 50,
        },
        "speculation.acceptance_window steps",
        "the LLM API averages over 50 steps, not over 50 requests",
    ),
    (
        {"method": "ngram", "speculation__options": {"min_match": 3}},
        "speculation.options.min_match unused",
        "the LLM API does not support a minimum match length: it drafts after a single repeated token",
    ),
    (
        {"method": "mtp", "target_facts": facts({"model_type": "mimo", "num_nextn_predict_layers": 1})},
        "speculation.method version",
        "TensorRT-LLM 1.2.1 may not support MTP layers of mimo",
    ),
    (
        {"engine__extra": {"gemm_plugin": "auto"}},
        "engine.extra.gemm_plugin unused",
        "an option of trtllm-build, which the LLM API does not use",
    ),
    (
        {"method": "ngram", "serving__structured_output": True},
        "serving.structured_output grammar",
        "a grammar without a continuation ends the executor of TensorRT-LLM 1.2.1",
    ),
]


@pytest.mark.parametrize(("changes", "key", "message"), WARNED, ids=[key for _, key, _ in WARNED])
def test_doubtful_or_unused_setting_is_a_warning(changes: dict[str, Any], key: str, message: str) -> None:
    found = diagnostics(**changes)[key]
    assert (found.severity, found.message) == ("warning", message)


def test_short_head_for_a_target_without_family_is_a_warning() -> None:
    """With a family the head is read and checked itself."""
    asked = case("1.2.1", "eagle3", engine__max_seq_len=8192, draft_facts=facts({"max_position_embeddings": 2048}))
    assert "speculation.draft.model positions" not in said(BACKEND.check(asked))
    found = said(BACKEND.check(replace(asked, target=None, head=None)))["speculation.draft.model positions"]
    assert found.severity == "warning"
    assert found.message == "the head has 2048 positions, fewer than max_seq_len 8192, and its RoPE table ends there"


def test_valid_recipes_cause_no_diagnostics() -> None:
    quantized = facts(quantization=FP8)
    assert diagnostics() == {}
    assert diagnostics("1.3.0rc27", "draft_target") == {}
    assert diagnostics("1.3.0rc27", "eagle3", speculation__options=TREE) == {}
    assert diagnostics("1.3.0rc27", "mtp", target_facts=MTP) == {}
    assert diagnostics(target_facts=quantized) == {}
    assert diagnostics(target_facts=quantized, target__quantization={"weights": "fp8", "kv_cache": "fp8"}) == {}
    assert diagnostics(target__quantization={"kv_cache": "fp8"}) == {}


def test_compressed_tensors_fp8_source_counts_as_fp8() -> None:
    """Independent of the tool that wrote it: the recipe may specify it, and a GPU without FP8 is reported."""
    source = facts(
        {"quantization_config": compressed_tensors(input_activations={"strategy": "token", "dynamic": True})}
    )
    asked = {"target_facts": source, "target__quantization": {"weights": "fp8"}}
    assert diagnostics(**asked) == {}
    found = diagnostics(**asked, engine__gpu="a100-80gb")["engine.gpu quantization"]
    assert found.message == "the target is fp8, but a100-80gb does not support FP8"


def test_memory_of_each_gpu_is_estimated_from_the_source() -> None:
    divided = {"target__parallel": {"tensor": 2}, "engine__max_seq_len": 1024}
    plain, other = BACKEND.memory(case("1.2.1", **divided))
    assert (plain.id, other.id) == ("0", "1")
    # 8,030,261,248 parameters of 2 bytes, on two GPUs; 4 texts of 1,024 tokens, 4 heads of 128 in 32 layers
    assert plain.weights_bytes == 8_030_261_248
    assert plain.kv_cache_bytes == 4 * 1024 * 2 * 32 * 4 * 128 * 2
    assert plain.draft_bytes == 0
    # KV caches leave a tenth of the memory without weights and activations free
    free = (79 << 30) - plain.weights_bytes - plain.activation_bytes
    assert plain.limit_bytes == (79 << 30) - int(free * (1 - 0.9))
    quantized, _ = BACKEND.memory(case("1.2.1", **divided, target_facts=facts(quantization=FP8)))
    # embedding and head are not quantized: 128,256 x 4,096 of 2 bytes each
    assert quantized.weights_bytes == (2 * 128256 * 4096 * 2 + 8_030_261_248 - 2 * 128256 * 4096) // 2
    assert quantized.kv_cache_bytes == plain.kv_cache_bytes // 2
    drafted, _ = BACKEND.memory(case("1.2.1", "draft_target", **divided))
    assert drafted.draft_bytes == 1_235_814_400 + 4 * 1024 * 2 * 16 * 4 * 64 * 2
    assert drafted.activation_bytes - plain.activation_bytes == 4 * 5 * 128256 * 4
    placed = BACKEND.memory(case("1.2.1", **divided, serving__placement={"target": [2, 3]}))
    assert [plan.id for plan in placed] == ["2", "3"]
    assert BACKEND.memory(case("1.2.1", target=None)) == []


@pytest.fixture
def double(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Install a strict double of tensorrt_llm; tests choose its version."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(DOUBLE), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setattr(installed, "find_spec", lambda name: object())
    return monkeypatch


@pytest.mark.slow
@pytest.mark.parametrize(
    ("version", "method", "options"),
    [
        ("1.0.0", "draft_target", {}),
        ("1.0.0", "ngram", {}),
        ("1.0.0", "eagle3", {}),
        ("1.3.0rc27", "draft_target", {}),
        ("1.3.0rc27", "ngram", {}),
        ("1.3.0rc27", "eagle3", TREE),
        ("1.3.0rc27", "mtp", {}),
        ("1.3.0rc27", "pard", {}),
        ("1.3.0rc27", "dflash", {}),
        ("1.3.0rc27", "gemma4_mtp", {}),
        ("1.4.0rc1", "gemma4_mtp", {}),
        ("1.4.0rc1", "dspark", {}),
        ("1.4.0rc4", "dspark", {"confidence_cost_table": "/t.json", "confidence_min_gain": 0.1}),
        ("1.4.0rc4", "dspark", {"confidence_cost_table": "/t.json", "confidence_calibration": "/c.json"}),
        ("1.4.0rc1", "suffix", {"max_cached_requests": 100}),
        ("1.4.0rc1", "draft_target", {"use_draft_logits": True}),
        ("1.1.0", "ngram", {}),
        ("1.2.1", "ngram", {}),
        ("1.2.1", "draft_target", {}),
        ("1.2.1", "eagle3", {}),
    ],
)
def test_emitted_model_yaml_is_accepted_by_the_classes_of_its_version(
    double, version: str, method: str, options
) -> None:
    double.setenv("TRTLLM_DOUBLE", version)
    api = find_version_spec(version).api
    knobs: dict[str, Any] = {"speculation__draft_len": 3 if options == TREE else 6}
    if options != TREE and "draft_len_schedule" in api.methods[method].lengths:
        knobs["speculation__schedule"] = SCHEDULE
    if api.threshold:
        knobs["speculation__acceptance_rate_threshold"] = 0.3
    asked = case(version, method, speculation__options=options, target_facts=MTP, **knobs)
    assert validate_installed(model_yaml(asked, "../../checkpoints/target", DRAFT)) == []


def test_dspark_tables_are_files_of_the_served_model(tmp_path: Path) -> None:
    table = tmp_path / "times.json"
    options = {"confidence_cost_table": str(table), "confidence_min_gain": 0.1}
    asked = partial(case, method="dspark", speculation__options=options)
    expected = {"enable_confidence_scheduling": True, "confidence_min_predicted_gain": 0.1}
    expected["confidence_cost_table_path"] = "./1/confidence_cost_table.json"
    config = model_yaml(asked("1.4.0rc4"), "target", DRAFT)["speculative_config"]
    assert expected.items() <= config.items()
    assert find_method("dspark").files(asked("1.4.0rc4")) == {"confidence_cost_table.json": table}
    place = "speculation.options.confidence_cost_table"
    assert "not documented" in said(BACKEND.check(asked("1.4.0rc4")))[f"{place} not-found"].hint
    table.write_text("{}")
    assert [key for key in said(BACKEND.check(asked("1.4.0rc4"))) if place in key] == []
    assert "1.4.0rc4" in said(BACKEND.check(asked("1.4.0rc1")))[f"{place} version"].hint
    assert artifact.read_texts(asked("1.4.0rc4")) == {"confidence_cost_table.json": "{}"}
    table.write_bytes(b"\xff")
    with pytest.raises(TrtspecError, match=r"cannot read confidence_cost_table\.json"):
        artifact.read_texts(asked("1.4.0rc4"))


def test_served_model_makes_the_paths_of_its_tables_absolute(tmp_path: Path) -> None:
    options = {"confidence_cost_table": "/t.json"}
    document = model_yaml(case("1.4.0rc4", "dspark", speculation__options=options), "../../checkpoints/target", DRAFT)
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "model.yaml").write_text(yaml.safe_dump(document))
    settings = SimpleNamespace(**document["triton_config"])
    arguments = load_model("tensorrt_llm_llmapi", make_pb_utils()).read_arguments(tmp_path, 1, settings)
    assert arguments["speculative_config"]["confidence_cost_table_path"] == str(
        tmp_path / "1/confidence_cost_table.json"
    )


def test_dspark_net_without_a_confidence_head_is_not_scheduled_by_it() -> None:
    name = "markov_head.markov_w1.weight"
    tensors = {name: TensorInfo(name, "BF16", (8, 8), Path("/nowhere"), 0, 128)}
    options = {"confidence_cost_table": __file__}
    asked = case("1.4.0rc4", "dspark", speculation__options=options, draft_facts=replace(facts(), tensors=tensors))
    assert "speculation.options.confidence_cost_table no-confidence" in said(BACKEND.check(asked))


@pytest.mark.parametrize("options", [{"confidence_min_gain": 0.1}, {"confidence_calibration": "/c.json"}])
def test_confidence_options_need_a_table(options: dict[str, Any]) -> None:
    with pytest.raises(TrtspecError, match="requires confidence_cost_table"):
        methods()["dspark"].parse(options)


@pytest.mark.parametrize("backend", ["embedded", "vllm", "sglang", "edge_llm"])
def test_other_engines_refuse_a_confidence_table(backend: str) -> None:
    chosen = find_backend(backend)
    version = choose_version(chosen, None)
    asked = source_context(backend, version, "dspark", speculation__options={"confidence_cost_table": __file__})
    found = said(chosen.check(asked))["speculation.options.confidence_cost_table not-supported"]
    assert found.hint == "remove it: the option is for the LLM API"


@pytest.mark.slow
def test_arguments_of_another_version_are_all_reported(double) -> None:
    double.setenv("TRTLLM_DOUBLE", "1.3.0rc27")
    document = model_yaml(case("1.0.0", "draft_target"), "../../checkpoints/target", DRAFT)
    document["max_sequence_len"] = 5
    document["kv_cache_config"]["free_gpu_memory_fraction"] = 1.5
    found = validate_installed(document)
    assert found[0].startswith("LLM does not support the argument max_sequence_len")
    assert found[1] == "kv_cache_config.free_gpu_memory_fraction: Input should be less than or equal to 1"
    assert found[2].startswith("speculative_config: Input tag 'DraftTarget' found using 'decoding_type' does not match")
    double.setenv("TRTLLM_DOUBLE", "1.0.0")
    newer = model_yaml(case("1.3.0rc27", "draft_target"), "../../checkpoints/target", DRAFT)
    assert validate_installed(newer) == ["speculative_config: Invalid decoding type: Draft_Target"]
    medusa = {"model": "m", "speculative_config": {"decoding_type": "Medusa"}}
    assert validate_installed(medusa) == [
        "speculative_config: decoding_type Medusa does not support the PyTorch backend"
    ]
    alone = {"model": "m", "speculative_config": {"decoding_type": "Eagle", "max_draft_len": 3}}
    assert validate_installed(alone) == ["speculative_config: Draft model must be provided for EAGLE"]


def test_validation_without_an_installation_reports_nothing() -> None:
    assert validate_installed({"model": "m", "anything": 1}) == []


@pytest.mark.slow
def test_broken_or_slow_installation_is_an_error(double, tmp_path: Path) -> None:
    package = tmp_path / "tensorrt_llm"
    package.mkdir()
    double.setenv("PYTHONPATH", str(tmp_path))
    (package / "__init__.py").write_text("raise ImportError('libcuda.so.1: cannot open shared object file')")
    with pytest.raises(TrtspecError, match=r"cannot be imported:\n(.|\n)*libcuda.so.1: cannot open"):
        validate_installed({"model": "m"})
    (package / "__init__.py").write_text("import time; time.sleep(60)")
    with pytest.raises(TrtspecError, match="importing tensorrt_llm took more than 1 s"):
        validate_installed({"model": "m"}, timeout_s=1.0)


@pytest.mark.trtllm
@pytest.mark.parametrize("method", ["draft_target", "ngram", "eagle3", "mtp"])
def test_emitted_model_yaml_is_accepted_by_a_real_installation(method: str) -> None:
    try:
        release = metadata.version("tensorrt_llm")
    except metadata.PackageNotFoundError:
        pytest.skip("tensorrt_llm is not installed")
    version = choose_version(backends()["llmapi"], release)
    asked = case(version, method, target_facts=MTP)
    assert validate_installed(model_yaml(asked, "../../checkpoints/target", DRAFT)) == []
