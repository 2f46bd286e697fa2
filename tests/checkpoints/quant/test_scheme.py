# SPDX-License-Identifier: Apache-2.0
"""The modules that a scheme quantizes, their entry in config.json, and unsupported schemes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests._support.configs import model_config
from trtspec.checkpoints.model_config import ModelConfig
from trtspec.checkpoints.quant_scheme import Scheme, scheme_problems, stage_problems
from trtspec.checkpoints.rules import Rule
from trtspec.checkpoints.trtllm import TrtllmQuantization
from trtspec.families.decoder import decoder_rules
from trtspec.families.mixtral import FAMILY as MIXTRAL

LAYER = "transformer.layers.0"
LINEAR = {f"{LAYER}.{name}" for name in ("attention.qkv", "attention.dense", "mlp.fc", "mlp.gate", "mlp.proj")}


def quantized(scheme: Scheme, rules: list[Rule]) -> set[str]:
    """Return the modules whose weights become FP8."""
    return {rule.module for rule in rules if scheme.quantizes(rule)}


def one_layer(**fields: Any) -> tuple[ModelConfig, list[Rule]]:
    """Return a model with all biases and its rules."""
    config = model_config(num_layers=1, attn_bias=True, dense_bias=True, mlp_bias=True, **fields)
    return config, decoder_rules(config)


def mixture() -> tuple[ModelConfig, list[Rule]]:
    """Return a model with experts and its rules."""
    config = model_config(num_layers=1, num_experts=4, experts_per_token=2)
    return config, MIXTRAL.rules(config)


@pytest.mark.parametrize(
    ("scheme", "expected"),
    [
        (Scheme(), set()),
        (Scheme("none", "fp8"), set()),
        (Scheme("fp8"), LINEAR),
        (Scheme("fp8_rowwise"), LINEAR),
        (Scheme("fp8", exclude=()), LINEAR | {"lm_head"}),
        (Scheme("fp8", exclude=("lm_head", "*.mlp.*")), {f"{LAYER}.attention.qkv", f"{LAYER}.attention.dense"}),
        (Scheme("fp8", exclude=("lm_head", "*.layers.0.attention.???")), LINEAR - {f"{LAYER}.attention.qkv"}),
        (Scheme("fp8", exclude=("lm_head", "*.LAYERS.*")), LINEAR),
        (Scheme("fp8", exclude=("*",)), set()),
    ],
)
def test_linear_layers_are_quantized_unless_a_pattern_excludes_them(scheme: Scheme, expected: set[str]) -> None:
    assert quantized(scheme, one_layer()[1]) == expected


def test_only_weights_are_quantized() -> None:
    _, rules = one_layer(qk_norm=True)
    targets = {rule.target for rule in rules if Scheme("fp8", exclude=()).quantizes(rule)}
    assert {target.rpartition(".")[2] for target in targets} == {"weight"}
    assert not any("norm" in target or "ln_f" in target or "embedding" in target for target in targets)


def test_experts_are_quantized_but_the_router_is_not() -> None:
    _, rules = mixture()
    dense = {f"{LAYER}.mlp.gate"}
    assert quantized(Scheme("fp8"), rules) == LINEAR - dense


@pytest.mark.parametrize(
    ("scheme", "needed"),
    [
        (Scheme(), False),
        (Scheme("fp8"), True),
        (Scheme("fp8_rowwise"), False),
        (Scheme("fp8_rowwise", "fp8"), True),
        (Scheme("none", "fp8"), True),
    ],
)
def test_activations_are_required_for_per_tensor_scales(scheme: Scheme, needed: bool) -> None:
    assert scheme.needs_activations is needed


def test_scheme_is_described_with_tensorrt_llm_names() -> None:
    dense, experts = one_layer()[1], mixture()[1]
    assert Scheme("fp8", "fp8").describe(dense) == TrtllmQuantization("FP8", "FP8", ("lm_head",))
    assert Scheme("fp8_rowwise").describe(dense) == TrtllmQuantization("FP8_PER_CHANNEL_PER_TOKEN", "", ("lm_head",))
    assert Scheme("fp8").describe(experts).exclude == ("lm_head", "*router")
    assert Scheme("none", "fp8").describe(dense) == TrtllmQuantization("", "FP8")


@pytest.mark.parametrize(
    ("scheme", "model", "expected"),
    [
        (Scheme("fp8", exclude=("*.mlp.*",)), one_layer, [f"{LAYER}.mlp.{name}" for name in ("fc", "gate", "proj")]),
        (Scheme("fp8", exclude=("*dense", "*head")), one_layer, [f"{LAYER}.attention.dense", "lm_head"]),
        (
            Scheme("fp8_rowwise", exclude=("*attention*", "lm_head")),
            one_layer,
            [f"{LAYER}.attention", f"{LAYER}.input_layernorm", "lm_head"],
        ),
        (
            Scheme("fp8_rowwise", exclude=("*.mlp.*", "lm_head")),
            one_layer,
            [f"{LAYER}.mlp", f"{LAYER}.post_layernorm", "lm_head"],
        ),
        (Scheme("fp8", exclude=("*.mlp.*",)), mixture, [f"{LAYER}.mlp", "*router"]),
    ],
)
def test_excluded_modules_are_listed_in_config(
    scheme: Scheme, model: Callable[[], tuple[ModelConfig, list[Rule]]], expected: list[str]
) -> None:
    assert list(scheme.describe(model()[1]).exclude) == expected


@pytest.mark.parametrize("exclude", [("lm_head",), ("lm_head", "*.mlp.fc", "*.mlp.gate"), ("*",), ()])
def test_supported_exclude_patterns_have_no_problems(exclude: tuple[str, ...]) -> None:
    assert scheme_problems(Scheme("fp8", "fp8", exclude), *one_layer()) == []


def test_exclude_patterns_are_ignored_without_quantization() -> None:
    assert scheme_problems(Scheme(exclude=("nothing",)), *one_layer()) == []


FUSED = "engines fuse mlp.fc and mlp.gate of a layer; exclude both or none (layer 0)"
TIED = "lm_head is tied to the embedding, which is not quantized; exclude lm_head"
ROWWISE_HEAD = "fp8_rowwise engines need lm_head in the model's dtype; exclude lm_head"
ROWWISE_ATTENTION = (
    "fp8_rowwise engines have one format for a layer's attention; exclude '*.attention.*' or none (layer 0)"
)
ROWWISE_MLP = "fp8_rowwise engines have one format for a layer's mlp; exclude '*.mlp.*' or none (layer 0)"
EXPERTS = "engines have one format for a layer's experts; exclude '*.mlp.*' or none (layer 0)"
UNKNOWN = "no module matches '*.attn.*'; an example is transformer.layers.0.attention.qkv"


@pytest.mark.parametrize(
    ("scheme", "problem"),
    [
        (Scheme("fp8", exclude=("lm_head", "*.attn.*")), ("exclude.1", UNKNOWN)),
        (Scheme("fp8", exclude=("lm_head", "*.mlp.fc")), ("exclude", FUSED)),
        (Scheme("fp8", exclude=("lm_head", "*.mlp.gate")), ("exclude", FUSED)),
        (Scheme("fp8_rowwise", exclude=("*.attention.*",)), ("exclude", ROWWISE_HEAD)),
        (Scheme("fp8_rowwise", exclude=("lm_head", "*.attention.qkv")), ("exclude", ROWWISE_ATTENTION)),
        (Scheme("fp8_rowwise", exclude=("lm_head", "*.mlp.proj")), ("exclude", ROWWISE_MLP)),
    ],
)
def test_unsupported_scheme_is_reported_at_its_recipe_key(scheme: Scheme, problem: tuple[str, str]) -> None:
    assert scheme_problems(scheme, *one_layer()) == [problem]


def test_tied_head_cannot_be_quantized() -> None:
    tied = one_layer(tied_embeddings=True)
    assert scheme_problems(Scheme("fp8", exclude=()), *tied) == [("exclude", TIED)]
    assert scheme_problems(Scheme("fp8"), *tied) == []


def test_experts_must_be_excluded_as_a_whole() -> None:
    assert scheme_problems(Scheme("fp8", exclude=("lm_head", "*.mlp.proj")), *mixture()) == [("exclude", EXPERTS)]
    assert scheme_problems(Scheme("fp8", exclude=("lm_head", "*.mlp.*")), *mixture()) == []


def test_rowwise_quantization_of_experts_is_rejected() -> None:
    assert scheme_problems(Scheme("fp8"), *mixture()) == []
    (problem,) = scheme_problems(Scheme("fp8_rowwise"), *mixture())
    assert problem == ("weights", "TensorRT-LLM does not support fp8_rowwise for a mixture of experts; use fp8")


@pytest.mark.parametrize(
    ("exclude", "named"),
    [
        (("lm_head",), False),
        (("lm_head", "*.mlp.*"), False),
        (("lm_head", "transformer.layers.1.*"), True),
        (("lm_head", "*.layers.0.attention.dense"), True),
    ],
)
def test_single_layer_patterns_are_rejected_with_pipeline_stages(exclude: tuple[str, ...], named: bool) -> None:
    problem = ("exclude", "pipeline stages number their layers from 0, so patterns cannot select single layers")
    found = stage_problems(Scheme("fp8", exclude=exclude), decoder_rules(model_config(num_layers=2)))
    assert found == [problem] * named
