# SPDX-License-Identifier: Apache-2.0
"""vLLM: the speculative_config of each method, rejected recipes, and quantization on load."""

from __future__ import annotations

from typing import Any

import pytest

from tests.backends.source_contexts import FP8, facts, said, source_context
from trtspec.backends.base import backends, backends_for_method, choose_version
from trtspec.backends.context import PlanContext
from trtspec.backends.vllm import BACKEND
from trtspec.backends.vllm.arguments import model_json, speculative_config
from trtspec.backends.vllm.versions import releases
from trtspec.core.registry import discover

DRAFT = "../../checkpoints/draft"
TREE = {"top_k": 4, "nodes": 12}
REVISION = "0123456789abcdef0123456789abcdef01234567"


def case(version: str = "0.27.1", method: str = "none", **changes: Any) -> PlanContext:
    return source_context("vllm", version, method, **changes)


def diagnostics(*arguments: Any, **changes: Any) -> dict[str, Any]:
    return said(BACKEND.check(case(*arguments, **changes)))


def test_versions_include_every_minor_release_and_those_of_containers() -> None:
    backend = backends()["vllm"]
    assert (backend.package, backend.converts) == ("vllm", False)
    assert {release.version: release.triton for release in releases().values() if release.triton} == {
        "0.19.0": ("26.04", "26.05"),
        "0.22.1": ("26.06",),
        "0.24.0": ("26.07",),
        "0.27.1": ("26.08",),
    }
    assert {version.rsplit(".", 1)[0] for version in releases()} == {f"0.{minor}" for minor in range(19, 34)}
    assert choose_version(backend, None) == "0.27.1", "the newest release in a container"
    assert choose_version(backend, "0.19") == "0.19.0"
    assert choose_version(backend, "0.33") == "0.33.0"


def test_methods_for_vllm_are_those_supported_by_some_release() -> None:
    known = {name for name in discover("trtspec.methods", "METHOD") if "vllm" in backends_for_method(name)}
    assert known - {"none"} == {name for release in releases().values() for name in release.methods}


@pytest.mark.parametrize(
    ("method", "changes", "expected"),
    [
        (
            "draft_target",
            {"speculation__draft_len": 5},
            {
                "method": "draft_model",
                "num_speculative_tokens": 5,
                "model": DRAFT,
                "draft_tensor_parallel_size": 1,
            },
        ),
        (
            "draft_target",
            {"speculation__draft": {"model": "./draft", "quantization": {"weights": "fp8"}}},
            {
                "method": "draft_model",
                "num_speculative_tokens": 5,
                "model": DRAFT,
                "draft_tensor_parallel_size": 1,
                "quantization": "fp8",
            },
        ),
        (
            "ngram",
            {"speculation__draft_len": 8, "speculation__options": {"min_match": 3, "max_match": 5}},
            {"method": "ngram", "num_speculative_tokens": 8, "prompt_lookup_min": 3, "prompt_lookup_max": 5},
        ),
        ("eagle", {}, {"method": "eagle", "num_speculative_tokens": 5, "model": DRAFT}),
        (
            "eagle3",
            {"speculation__draft_len": 3},
            {"method": "eagle3", "num_speculative_tokens": 3, "model": DRAFT},
        ),
        ("mtp", {"speculation__draft_len": 2}, {"method": "mtp", "num_speculative_tokens": 2}),
        (
            "pard",
            {"speculation__draft_len": 8, "target__parallel": {"tensor": 2}},
            {
                "method": "draft_model",
                "num_speculative_tokens": 8,
                "parallel_drafting": True,
                "model": DRAFT,
                "draft_tensor_parallel_size": 2,
            },
        ),
        (
            "p_eagle",
            {"speculation__draft_len": 7},
            {"method": "eagle3", "num_speculative_tokens": 7, "parallel_drafting": True, "model": DRAFT},
        ),
        (
            "suffix",
            {"speculation__draft_len": 16, "speculation__options": {"min_token_prob": 0.2}},
            {
                "method": "suffix",
                "num_speculative_tokens": 16,
                "suffix_decoding_max_tree_depth": 24,
                "suffix_decoding_max_cached_requests": 10000,
                "suffix_decoding_max_spec_factor": 1.0,
                "suffix_decoding_min_token_prob": 0.2,
            },
        ),
    ],
)
def test_speculative_config_is_valid_and_the_same_in_every_version(method: str, changes, expected) -> None:
    for version in releases():
        assert speculative_config(case(version, method, **changes), DRAFT) == expected
        assert expected.keys() <= releases()[version].fields


@pytest.mark.parametrize(("version", "method"), [("0.20.0", "dflash"), ("0.25.0", "dspark"), ("0.32.0", "medusa")])
def test_version_specific_drafter_is_configured_with_its_chain_length(version: str, method: str) -> None:
    changes = {} if method == "medusa" else {"speculation__draft_len": 5}
    config = speculative_config(case(version, method, **changes), DRAFT)
    depth = 4 if method == "medusa" else 5
    assert config == {"method": method, "num_speculative_tokens": depth, "model": DRAFT}


def test_draft_with_another_vocabulary_sets_use_heterogeneous_vocab() -> None:
    asked = case("0.25.0", "draft_target", draft="qwen2.5-7b")
    assert speculative_config(asked, DRAFT)["use_heterogeneous_vocab"] is True
    assert "use_heterogeneous_vocab" not in speculative_config(case("0.25.0", "draft_target"), DRAFT)


def test_model_json_contains_all_vllm_arguments() -> None:
    asked = case(
        "0.19.0",
        target__parallel={"tensor": 2},
        target__dtype="bfloat16",
        target__quantization={"weights": "fp8", "kv_cache": "fp8"},
        serving__kv_cache_fraction=0.8,
        engine__max_seq_len=1024,
    )
    assert model_json(asked, "../../checkpoints/target", None) == {
        "model": "../../checkpoints/target",
        "dtype": "bfloat16",
        "tensor_parallel_size": 2,
        "pipeline_parallel_size": 1,
        "max_num_seqs": 4,
        "max_model_len": 1024,
        "max_num_batched_tokens": 8192,
        "gpu_memory_utilization": 0.8,
        "quantization": "fp8",
        "kv_cache_dtype": "fp8",
    }


def test_quantized_source_needs_no_quantization_argument() -> None:
    wanted = {"weights": "fp8", "kv_cache": "fp8"}
    asked = case(target__quantization=wanted, target_facts=facts(quantization=FP8))
    assert diagnostics(target__quantization=wanted, target_facts=facts(quantization=FP8)) == {}
    assert "quantization" not in model_json(asked, "m", None)


def test_fp8_rowwise_becomes_fp8_per_channel_in_0_24() -> None:
    asked = case("0.24.0", target__quantization={"weights": "fp8_rowwise"})
    assert model_json(asked, "m", None)["quantization"] == "fp8_per_channel"


def test_hub_ids_have_their_revisions() -> None:
    asked = case(
        method="draft_target",
        target__model="org/model",
        target__revision=REVISION,
        speculation__draft__model="org/draft",
        speculation__draft__revision=REVISION,
    )
    document = model_json(asked, "org/model", "org/draft")
    assert document["revision"] == document["speculative_config"]["revision"] == REVISION


REFUSED = [
    (
        {"method": "draft_target", "speculation__options": {"stop_below": 0.3}},
        "speculation.options.stop_below not-supported",
        "vLLM always drafts draft_len tokens",
    ),
    (
        {"method": "eagle", "speculation__options": {"lossy": True}},
        "speculation.options.lossy lossy",
        "vLLM accepts drafts exactly; typical acceptance is not supported",
    ),
    ({"method": "medusa", "version": "0.33.0"}, "speculation.method method", "vLLM 0.33.0 does not support medusa"),
    ({"method": "mtp"}, "speculation.method no-draft", "the target lacks MTP layers"),
    (
        {"method": "mtp", "target_facts": facts({"num_nextn_predict_layers": 1})},
        "speculation.method version",
        "vLLM 0.27.1 does not draft with MTP layers of llama",
    ),
    (
        {
            "method": "mtp",
            "speculation__draft_len": 3,
            "target_facts": facts({"model_type": "deepseek_v3", "num_nextn_predict_layers": 2}),
        },
        "speculation.draft_len out-of-range",
        "the target's 2 MTP layers are used in turn, and 3 is not a multiple of 2",
    ),
    (
        {"version": "0.19.0", "target__quantization": {"weights": "fp8_rowwise"}},
        "target.quantization.weights quantization",
        "vLLM 0.19.0 does not quantize to fp8_rowwise on load",
    ),
    (
        {
            "target__quantization": {"weights": "fp8"},
            "target_facts": facts({"quantization_config": {"quant_method": "awq"}}),
        },
        "target.quantization.weights quantization",
        "fp8 weights are requested, but the target is awq",
    ),
    (
        {
            "method": "draft_target",
            "target__parallel": {"tensor": 4},
            "speculation__draft": {"model": "./draft", "parallel": {"tensor": 2}},
        },
        "speculation.draft.parallel.tensor parallel",
        "the draft uses the target's 4 GPUs in vLLM, not 2",
    ),
    (
        {"serving__streaming": False},
        "serving.streaming not-supported",
        "Triton's vLLM backend serves decoupled models only",
    ),
    (
        {"version": "0.24.0", "method": "draft_target", "draft": "qwen2.5-7b"},
        "speculation.draft.model vocabulary",
        "the draft has 152064 vocabulary entries, the target 128256: this engine runs both unchanged and cannot pad "
        "the smaller one",
    ),
]
WARNED = [
    ({"method": "eagle"}, "speculation.options tree", "vLLM drafts a chain of 5 tokens, not the tree's 25"),
    (
        {"method": "eagle3", "speculation__draft_len": 3, "speculation__options": TREE},
        "speculation.options tree",
        "vLLM drafts a chain of 3 tokens, not the tree's 12",
    ),
    (
        {"method": "draft_target", "speculation__options": {"use_draft_logits": True}},
        "speculation.options.use_draft_logits unused",
        "vLLM drafts and verifies greedily chosen tokens, without draft probabilities",
    ),
    (
        {"method": "draft_target", "draft": "qwen2.5-7b"},
        "speculation.draft.model vocabulary",
        "draft and target share a tokenizer, but have 152064 and 128256 rows: "
        "vLLM maps the shared tokens, on its V1 model runner",
    ),
    (
        {"target__quantization": {"weights": "fp8", "exclude": ["lm_head", "*mlp*"]}},
        "target.quantization.exclude unused",
        "vLLM quantizes every layer except the head on load and ignores exclude",
    ),
    (
        {"engine__extra": {"gemm_plugin": "auto"}},
        "engine.extra.gemm_plugin unused",
        "an option of trtllm-build, which vLLM does not use",
    ),
]
NOTED = (
    {"method": "suffix"},
    "speculation.method needs-package",
    "vLLM needs arctic-inference for suffix decoding, which its containers do not include",
)
FOUND = [(*row, "error") for row in REFUSED] + [(*row, "warning") for row in WARNED] + [(*NOTED, "note")]


@pytest.mark.parametrize(("changes", "key", "message", "severity"), FOUND, ids=[row[1] for row in FOUND])
def test_setting_has_the_severity_of_its_consequence(changes, key, message, severity) -> None:
    found = diagnostics(**changes)[key]
    assert (found.severity, found.message) == (severity, message)


@pytest.mark.parametrize("version", releases())
def test_draft_has_the_tensor_parallelism_of_its_target(version: str) -> None:
    """vllm-project/vllm:vllm/v1/spec_decode/draft_model.py, _raise_if_draft_tp_mismatch."""
    assert "equal_draft_tensor" in releases()[version].does
    divided = case(version, "draft_target", target__parallel={"tensor": 4})
    assert speculative_config(divided, DRAFT)["draft_tensor_parallel_size"] == 4
    one = {"model": "./draft", "parallel": {"tensor": 1}}
    found = diagnostics(version, "draft_target", target__parallel={"tensor": 4}, speculation__draft=one)
    assert found["speculation.draft.parallel.tensor parallel"].hint == "remove it"


@pytest.mark.parametrize("model_type", ["deepseek_v4", "exaone4_5", "hy_v3"])
def test_mtp_supports_more_model_types_in_0_22_1_than_in_0_19_0(model_type: str) -> None:
    layers = facts({"model_type": model_type, "num_nextn_predict_layers": 1})
    assert diagnostics("0.22.1", "mtp", target_facts=layers) == {}
    assert list(diagnostics("0.19.0", "mtp", target_facts=layers)) == ["speculation.method version"]


def test_mtp_target_is_accepted_by_its_architecture() -> None:
    config = {"model_type": "mimo_v2", "architectures": ["MiMoV2ForCausalLM"], "num_nextn_predict_layers": 1}
    assert diagnostics("0.22.1", "mtp", target_facts=facts(config)) == {}


def test_compressed_tensors_source_is_fp8_in_check_and_model_json() -> None:
    """The check and model.json use the same parser."""
    group = {"type": "float", "num_bits": 8, "strategy": "tensor", "symmetric": True, "dynamic": False}
    config = {"quant_method": "compressed-tensors", "format": "float-quantized", "quantization_status": "compressed"}
    config["config_groups"] = {"group_0": {"targets": ["Linear"], "weights": group, "input_activations": group}}
    source = facts({"quantization_config": config | {"ignore": ["lm_head"]}})
    asked = {"target__quantization": {"weights": "fp8"}, "target_facts": source}
    assert diagnostics(**asked) == {}
    assert "quantization" not in model_json(case(**asked), "m", None)


def test_valid_recipes_cause_no_diagnostics() -> None:
    assert diagnostics() == {}
    assert diagnostics(method="draft_target") == {}
    assert diagnostics(method="ngram", speculation__options={"min_match": 3}) == {}
    assert diagnostics(method="eagle3") == {}
    mtp = facts({"model_type": "qwen3_5", "text_config": {"mtp_num_hidden_layers": 1}})
    assert diagnostics(method="mtp", speculation__draft_len=3, target_facts=mtp) == {}
    assert diagnostics(target__quantization={"weights": "fp8", "kv_cache": "fp8"}) == {}


def test_memory_counts_weights_that_are_quantized_on_load() -> None:
    [plain], [quantized] = BACKEND.memory(case()), BACKEND.memory(case(target__quantization={"weights": "fp8"}))
    assert plain.weights_bytes == 2 * 8_030_261_248
    assert quantized.weights_bytes == 8_030_261_248 + 2 * 128256 * 4096


def test_cpu_model_json_sets_kv_cache_bytes_instead_of_gpu_utilization() -> None:
    document = model_json(case(engine__device="cpu", target__dtype="float32"), "m", None)
    assert document["dtype"] == "float32"
    assert document["enforce_eager"] is True
    assert document["kv_cache_memory_bytes"] >= 256 << 20
    assert "gpu_memory_utilization" not in document
