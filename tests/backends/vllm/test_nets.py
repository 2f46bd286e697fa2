# SPDX-License-Identifier: Apache-2.0
"""vLLM: drafters that a release cannot load, or that cannot draft for the target."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.backends.source_contexts import facts, said, source_context
from trtspec.backends.vllm import BACKEND
from trtspec.checkpoints.safetensors import TensorInfo
from trtspec.checkpoints.source import Source
from trtspec.core.diagnostics import Diagnostic
from trtspec.methods.eagle3 import AUX_LAYERS

MODEL = "speculation.draft.model"


def net(architecture: str | None = "LlamaForCausalLM", **config: Any) -> Source:
    """Return the metadata of a drafter's checkpoint."""
    named = {"architectures": [architecture] if architecture else None}
    return facts({"max_position_embeddings": 4096} | named | config)


def target(architecture: str, model_type: str) -> Source:
    return facts({"architectures": [architecture], "model_type": model_type})


def errors(version: str, method: str, **changes: Any) -> dict[str, Diagnostic]:
    found = said(BACKEND.check(source_context("vllm", version, method, **{"draft_facts": net(), **changes})))
    return {key: each for key, each in found.items() if each.severity == "error"}


@pytest.mark.parametrize("method", ["eagle", "eagle3"])
def test_drafter_with_too_few_positions_is_an_error_before_0_27(method: str) -> None:
    """vllm-project/vllm#48894: a device-side assert past 2,048 positions of a published drafter."""
    short = {"draft_facts": net(max_position_embeddings=2048), "engine__max_seq_len": 8192}
    found = errors("0.26.0", method, **short)[f"{MODEL} positions"]
    assert found.message == "the drafter has 2048 positions, and vLLM 0.26.0 reads past them in longer texts"
    assert (
        found.hint == "set engine.max_seq_len to at most 2048; supported by vLLM 0.27.0 to 0.33.0: see engine.version"
    )
    assert errors("0.27.0", method, **short) == {}
    assert errors("0.26.0", method, **short | {"engine__max_seq_len": 2048}) == {}


def test_positions_are_read_from_a_speculators_config() -> None:
    layer = {"max_position_embeddings": 2048, "model_type": "llama"}
    config = {"speculators_model_type": "eagle3", "transformer_layer_config": layer}
    short = {"draft_facts": net(None, **config), "engine__max_seq_len": 8192}
    assert list(errors("0.24.0", "eagle3", **short)) == [f"{MODEL} positions"]


def test_aux_layers_listed_by_their_outputs_cause_a_warning() -> None:
    """As SpecForge and SGLang count them within eagle_config; test_real.py compares the drafts of the two readings."""
    outputs = {AUX_LAYERS: [1, 15, 28]}

    def warning(**config: Any) -> Diagnostic | None:
        context = source_context("vllm", "0.32.0", "eagle3", draft_facts=net(**config))
        return said(BACKEND.check(context)).get(f"{MODEL} aux-layers")

    found = warning(eagle_config=outputs)
    assert found
    assert (found.severity, found.hint) == (
        "warning",
        f"set {AUX_LAYERS}: [2, 16, 29] at the top of config.json, which vLLM prefers, for better acceptance",
    )
    assert found.message.startswith("eagle_config lists the layers [1, 15, 28] by their outputs")
    for config in ({"eagle_config": outputs, **outputs}, outputs, {"eagle_config": {AUX_LAYERS: ["1"]}}, {}):
        assert warning(**config) is None


def test_eagle_drafter_with_bias_is_rejected_if_its_class_has_none() -> None:
    """vllm-project/vllm#11126: loading such a drafter raises KeyError."""
    bias = {"fc.bias": TensorInfo("fc.bias", "BF16", (4096,), Path("/nowhere"), 0, 8192)}
    found = errors("0.24.0", "eagle", draft_facts=replace(net(), tensors=bias))[f"{MODEL} net-bias"]
    assert found.message == "the drafter has fc.bias, which EagleLlamaForCausalLM of vLLM 0.24.0 does not support"
    cohere = replace(net("CohereForCausalLM"), tensors=bias)
    assert errors("0.24.0", "eagle", draft_facts=cohere) == {}
    assert errors("0.24.0", "eagle3", draft_facts=replace(net(), tensors=bias)) == {}


@pytest.mark.parametrize(
    ("version", "method", "architecture", "name", "has"),
    [
        ("0.24.0", "eagle", "LlamaForCausalLM", "EagleLlamaForCausalLM", True),
        ("0.24.0", "eagle", "EagleLlamaForCausalLM", "EagleLlamaForCausalLM", True),
        ("0.24.0", "eagle", "Qwen2ForCausalLM", "EagleQwen2ForCausalLM", False),
        ("0.19.0", "eagle", "MistralForCausalLM", "EagleMistralForCausalLM", False),
        ("0.24.0", "eagle", "MistralForCausalLM", "EagleMistralForCausalLM", True),
        ("0.24.0", "eagle3", "LlamaForCausalLMEagle3", "LlamaForCausalLMEagle3", True),
        ("0.24.0", "eagle3", "LlamaForCausalLM", "Eagle3LlamaForCausalLM", True),
        ("0.19.0", "eagle3", "Qwen3ForCausalLM", "Eagle3Qwen3ForCausalLM", False),
        ("0.24.0", "eagle3", "MixtralForCausalLM", "Eagle3MixtralForCausalLM", False),
    ],
)
def test_drafter_class_missing_in_a_release_is_rejected(version, method, architecture, name, has) -> None:
    """vllm-project/vllm#24967."""
    found = errors(version, method, draft_facts=net(architecture))
    message = f"vLLM {version} lacks the class {name}, which this drafter requires"
    assert [each.message for each in found.values()] == ([] if has else [message])


def test_speculators_drafter_is_checked_by_its_type() -> None:
    config = {"speculators_model_type": "peagle", "transformer_layer_config": {"model_type": "llama"}}
    found = errors("0.19.0", "eagle3", draft_facts=net(None, **config))[f"{MODEL} net-class"]
    assert found.message == "vLLM 0.19.0 does not support drafters of the speculators type peagle"
    assert errors("0.24.0", "eagle3", draft_facts=net(None, **config)) == {}


def test_eagle3_target_type_must_be_supported_by_the_release() -> None:
    phi = target("Phi3ForCausalLM", "phi3")
    found = errors("0.19.0", "eagle3", target_facts=phi)["target.model version"]
    assert found.message.endswith("llama, minicpm, nemotron_h, qwen, but not for phi3")
    assert errors("0.24.0", "eagle3", target_facts=phi) == {}
    assert errors("0.19.0", "eagle3", target_facts=target("Qwen3ForCausalLM", "qwen3")) == {}


def test_eagle3_target_must_provide_hidden_states() -> None:
    found = errors("0.32.0", "eagle3", target_facts=target("MixtralForCausalLM", "mixtral"))["target.model version"]
    assert found.message == "MixtralForCausalLM of vLLM 0.32.0 does not provide hidden states to eagle3"
    assert errors("0.32.0", "eagle", target_facts=target("MixtralForCausalLM", "mixtral")) == {}


@pytest.mark.parametrize(
    ("version", "method", "architecture", "runs"),
    [
        ("0.24.0", "ngram", "LlamaForCausalLM", False),
        ("0.32.0", "ngram", "LlamaForCausalLM", False),
        ("0.32.0", "draft_target", "LlamaForCausalLM", False),
        ("0.29.0", "eagle3", "LlamaForCausalLM", False),
        ("0.32.0", "eagle3", "LlamaForCausalLM", True),
        ("0.32.0", "eagle3", "GptOssForCausalLM", False),
        ("0.32.0", "none", "LlamaForCausalLM", True),
    ],
)
def test_drafting_with_pipeline_parallelism_is_rejected_unless_supported(version, method, architecture, runs) -> None:
    found = errors(
        version, method, target__parallel={"pipeline": 2}, target_facts=target(architecture, "llama")
    )  # fmt: skip
    message = f"vLLM {version} does not support {method} with pipeline parallelism"
    assert [each.message for each in found.values()] == ([] if runs else [message])


def test_omni_dspark_drafts_its_whole_block() -> None:
    def found(draft_len: int, architecture: str = "Qwen3OmniDSparkModel") -> dict[str, Any]:
        drafter = net(architecture, model_type="qwen3", block_size=15)
        return errors("0.33.0", "dspark", speculation__draft_len=draft_len, draft_facts=drafter)

    key = "speculation.draft_len block-size"
    assert found(7)[key].message == "vLLM 0.33.0 drafts the whole block of a Qwen3OmniDSparkModel, 15 tokens, not 7"
    assert key not in found(15)
    assert key not in found(7, "Qwen3DSparkModel")


def test_ambiguous_dspark_drafter_class_is_rejected_before_0_29() -> None:
    named = {"draft_facts": net("DSparkDraftModel", model_type="qwen3")}
    found = errors("0.28.0", "dspark", **named)[f"{MODEL} net-class"]
    assert found.message == "vLLM 0.28.0 expects layers of DeepSeek V4 in a drafter of the class DSparkDraftModel"
    assert errors("0.29.0", "dspark", **named) == {}
    assert errors("0.25.0", "dspark", draft_facts=net("Qwen3DSparkModel", model_type="qwen3")) == {}


def test_dflash_drafter_with_too_few_positions_is_rejected_before_0_33() -> None:
    short = {"draft_facts": net("DFlashDraftModel", max_position_embeddings=1024)}
    assert list(errors("0.32.0", "dflash", **short)) == [f"{MODEL} positions"]
    assert errors("0.33.0", "dflash", **short) == {}


def test_published_medusa_tensor_names_are_rejected_before_0_25() -> None:
    assert errors("0.25.0", "medusa") == {}
    found = errors("0.24.0", "medusa")[f"{MODEL} net-class"]
    assert found.message == "vLLM 0.24.0 does not recognize the names of the heads' tensors and ignores them"
    can = "supported by vLLM 0.25.0 to 0.32.0: see engine.version"
    assert found.hint == f"trtspec convert-draft --to vllm renames them; {can}"
    own = {"blocks.0.layers.0.weight": TensorInfo("blocks.0.layers.0.weight", "BF16", (9, 9), Path("/nowhere"), 0, 162)}
    assert errors("0.24.0", "medusa", draft_facts=replace(net(), tensors=own)) == {}


def test_medusa_hidden_size_and_bias_are_checked_against_the_config() -> None:
    bias = {"0.0.linear.bias": TensorInfo("0.0.linear.bias", "BF16", (4096,), Path("/nowhere"), 0, 8192)}
    wide = facts({"hidden_size": 5120})
    assert list(errors("0.32.0", "medusa", target_facts=wide)) == [f"{MODEL} hidden-size"]
    assert errors("0.32.0", "medusa", target_facts=wide, draft_facts=net(hidden_size=5120)) == {}
    context = source_context("vllm", "0.32.0", "medusa", draft_facts=replace(net(), tensors=bias))
    assert said(BACKEND.check(context))[f"{MODEL} net-bias"].severity == "warning"


@pytest.mark.parametrize(
    ("architecture", "keys", "first", "last_without"),
    [
        ("DFlash2DraftModel", {"conv_kernel_size": 2, "selector_rank": 256}, "0.28.0", "0.27.1"),
        ("Qwen3XPressModel", {"xpress_rank": 256}, "0.33.0", "0.32.0"),
    ],
)
def test_variant_of_dflash_is_served_from_the_release_with_its_class(
    architecture: str, keys: dict[str, Any], first: str, last_without: str
) -> None:
    served = {"draft_facts": net(architecture, **keys), "target_facts": target("Qwen3ForCausalLM", "qwen3")}
    assert errors(first, "dflash", **served) == {}
    refused = errors(last_without, "dflash", **served)[f"{MODEL} net-class"]
    assert f"supported by vLLM {first}" in refused.hint
    unnamed = served | {"draft_facts": net("DFlashDraftModel", **keys)}
    assert "but its class is not" in errors(first, "dflash", **unnamed)[f"{MODEL} variant"].message


def test_xpress_nets_that_vllm_asserts_on_are_refused() -> None:
    whole = {"target_facts": facts({"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 512})}
    for key, value, code in (("sample_from_anchor", True, "anchor"), ("draft_vocab_size", 256, "vocabulary")):
        found = errors("0.33.0", "dflash", draft_facts=net("Qwen3XPressModel", **{key: value}), **whole)
        assert list(found) == [f"{MODEL} {code}"]


def test_speculators_type_of_no_release_is_refused_with_a_hint() -> None:
    given = {
        "draft_facts": net(None, speculators_model_type="xpress"),
        "target_facts": target("Qwen3ForCausalLM", "qwen3"),
    }
    refused = errors("0.33.0", "dflash", **given)[f"{MODEL} net-class"]
    assert "speculators type xpress" in refused.message
    assert "no known release reads this type" in refused.hint
