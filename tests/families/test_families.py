# SPDX-License-Identifier: Apache-2.0
"""Every family checks by headers that a source matches config.json, and reads config.json or raises an error."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests._support.tiny import FAMILIES, convert, make_model
from tests.families.sources import edit, refused, rewrite
from trtspec.checkpoints.rules import Matched, find_family, match
from trtspec.checkpoints.source import Source, load_source
from trtspec.checkpoints.trtllm import load_checkpoint
from trtspec.core.errors import CheckpointError


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Source]:
    """A function that returns the source of a family; tests must not change it."""
    roots: dict[str, Path] = {}

    def load(family: str) -> Source:
        if family not in roots:
            roots[family] = make_model(tmp_path_factory.mktemp(family), family)
        return load_source(roots[family])

    return load


def cover(source: Source) -> Matched:
    """Compare the rules of a source's family with it."""
    _, family = find_family(source)
    config = family.read(source.reader, "auto")
    return match(family.rules(config), family.skips(config), source)


def said_of(source: Source) -> list[str]:
    """Return the problems of a source, line by line."""
    with pytest.raises(CheckpointError) as caught:
        cover(source)
    first, *problems = f"{caught.value.where}: {caught.value.message}".splitlines()
    assert caught.value.hint
    assert first.startswith(f"{source.root}: {len(problems)} tensor")
    return [problem.strip() for problem in problems]


def test_architectures_of_families_are_distinct() -> None:
    served = [name for family in FAMILIES.values() for name in family.architectures]
    assert len(served) == len(set(served))


@pytest.mark.parametrize("family", FAMILIES)
class TestCoverage:
    def test_every_tensor_is_used(self, family: str, sources: Callable[[str], Source]) -> None:
        source = sources(family)
        matched = cover(source)
        assert find_family(source)[0] == family
        assert {tensor.name for parts in matched.sources.values() for tensor in parts} == source.tensors.keys()
        assert matched.skipped == {}

    def test_every_missing_tensor_is_reported(self, family: str, sources: Callable[[str], Source]) -> None:
        source = sources(family)
        for name in source.tensors:
            rest = {other: tensor for other, tensor in source.tensors.items() if other != name}
            assert said_of(replace(source, tensors=rest)) == [f"{name}: missing"]

    def test_every_misshapen_tensor_is_reported(self, family: str, sources: Callable[[str], Source]) -> None:
        source = sources(family)
        for name, tensor in source.tensors.items():
            wrong = replace(tensor, shape=(tensor.shape[0] + 1, *tensor.shape[1:]))
            shapes = f"{list(wrong.shape)} in model.safetensors, but {list(tensor.shape)} according to config.json"
            assert said_of(replace(source, tensors=source.tensors | {name: wrong})) == [f"{name}: {shapes}"]

    def test_surplus_tensor_is_reported(self, family: str, sources: Callable[[str], Source]) -> None:
        source = sources(family)
        norm = source.tensors["model.norm.weight"]
        for name in ("model.layers.2.input_layernorm.weight", "model.layers.0.self_attn.sinks", "score.weight"):
            surplus = source.tensors | {name: replace(norm, name=name)}
            assert said_of(replace(source, tensors=surplus)) == [f"{name}: no rule uses it"]

    def test_unsupported_dtype_is_reported(self, family: str, sources: Callable[[str], Source]) -> None:
        source = sources(family)
        name = "model.layers.1.self_attn.o_proj.weight"
        wrong = source.tensors | {name: replace(source.tensors[name], dtype="I8")}
        expected = f"{name}: dtype I8 in model.safetensors; supported: BF16, F16, F32"
        assert said_of(replace(source, tensors=wrong)) == [expected]

    def test_rotary_frequencies_of_old_exports_are_skipped(self, family: str, sources: Callable[[str], Source]) -> None:
        source = sources(family)
        name = "model.layers.1.self_attn.rotary_emb.inv_freq"
        more = source.tensors | {name: replace(source.tensors["model.norm.weight"], name=name, dtype="I8")}
        assert cover(replace(source, tensors=more)).skipped == {name: "computed from rope_theta"}

    def test_tied_head_that_equals_the_embedding_is_skipped(self, family: str, tmp_path: Path) -> None:
        source = make_model(tmp_path / "hf", family, tie_word_embeddings=True)
        assert "lm_head.weight" not in load_source(source).tensors
        without = load_file(convert(source, tmp_path / "without") / "rank0.safetensors")
        assert torch.equal(without["lm_head.weight"], without["transformer.vocab_embedding.weight"])
        embedding = "model.embed_tokens.weight"
        rewrite(source, lambda tensors: tensors.update({"lm_head.weight": tensors[embedding].clone()}))
        assert cover(load_source(source)).skipped == {"lm_head.weight": "equal to the embedding, which is used"}
        stored = load_file(convert(source, tmp_path / "stored") / "rank0.safetensors")
        assert all(torch.equal(without[name], stored[name]) for name in without.keys() | stored.keys())

    def test_converted_checkpoint_is_read_back_with_the_same_config(
        self, family: str, sources: Callable[[str], Source], tmp_path: Path
    ) -> None:
        source = sources(family)
        checkpoint = load_checkpoint(convert(source.root, tmp_path / "c"))
        assert checkpoint.config == FAMILIES[family].read(source.reader, "auto")
        assert checkpoint.config.num_parameters == sum(prod(tensor.shape) for tensor in checkpoint.tensors)


def test_many_problems_are_counted_and_the_first_ones_listed(sources: Callable[[str], Source]) -> None:
    with pytest.raises(CheckpointError) as caught:
        cover(replace(sources("llama"), tensors={}))
    assert "21 tensors do not add up:\n  lm_head.weight: missing\n" in str(caught.value)
    assert caught.value.message.endswith("\n  ... and 9 more")


FACTORS = {"short_factor": [1.0] * 4, "long_factor": [1.0] * 4, "rope_type": "longrope"}
WRONG = {
    "gemma2": [
        ({"hidden_activation": "gelu"}, "hidden_activation 'gelu' is not supported; supported: gelu_pytorch_tanh"),
        ({"use_bidirectional_attention": True}, "use_bidirectional_attention is not supported: text is generated from"),
        ({"query_pre_attn_scalar": 0}, "query_pre_attn_scalar is 0, expected a positive number"),
        ({"layer_types": ["full_attention"]}, 'layer_types is ["full_attention"], expected 2 times full_attention or'),
        ({"attn_logit_softcapping": "50"}, "attn_logit_softcapping is '50', expected float"),
        ({"attn_logit_softcapping": -1.0}, "attn_logit_softcapping is -1.0, expected 0 or more"),
    ],
    "gemma3": [
        (
            {"rope_parameters": {"sliding_attention": {"rope_type": "linear", "factor": 2.0}}},
            "scaled rotary positions in layers with a window are not supported by the conversion",
        ),
        ({"rope_parameters": {"full_attention": {"rope_theta": 0.0}}}, "rope_theta is 0.0, expected a number above 1"),
    ],
    "phi3": [
        (
            {"rope_parameters": {"rope_type": "llama3"}},
            "rope type 'llama3' is not supported; supported: default, longrope",
        ),
        (
            {"rope_parameters": {"partial_rotary_factor": 0.1}},
            "partial_rotary_factor is 0.1, which rotates 0 of a head",
        ),
        (
            {"rope_parameters": {"partial_rotary_factor": 1.5}},
            "partial_rotary_factor is 1.5, which rotates 12 of a head",
        ),
        (
            {"rope_parameters": FACTORS | {"long_factor": [1.0] * 5}},
            "short_factor and long_factor must have 4 numbers each, one for each rotary pair",
        ),
        ({"rope_parameters": FACTORS | {"short_factor": [0.0] * 4}}, "short_factor is [0.0, 0.0, 0.0, 0.0], expected"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported; supported: silu"),
    ],
    "mistral": [
        ({"sliding_window": "all"}, "config.json: sliding_window is 'all', expected int"),
        ({"sliding_window": -1}, "config.json: sliding_window is -1, expected a positive number"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported; supported: silu"),
    ],
    "granite": [
        ({"residual_multiplier": 0.0}, "residual_multiplier is 0.0, expected a number above 0"),
        ({"logits_scaling": "8"}, "logits_scaling is '8', expected float"),
    ],
    "olmo2": [({"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported; supported: silu")],
    "mixtral": [
        ({"num_local_experts": None}, "model.layers.0.block_sparse_moe.experts.4.w1.weight: missing"),
        ({"num_local_experts": 20000}, "num_local_experts is 20000, expected a positive number of at most 16,384"),
        ({"num_experts_per_tok": 5}, "num_experts_per_tok is 5, expected a positive number of at most 4"),
        ({"num_local_experts": 3}, "model.layers.0.block_sparse_moe.experts.3.w1.weight: no rule uses it"),
        ({"num_local_experts": 5}, "model.layers.0.block_sparse_moe.gate.weight: [4, 32] in model.safetensors, but"),
    ],
    "qwen2": [
        ({"use_sliding_window": "yes"}, "config.json: use_sliding_window is 'yes', expected bool"),
        ({"hidden_size": 34}, "hidden_size 34 is not a multiple of num_attention_heads 4"),
        ({"num_attention_heads": 32}, "head size 1 is odd; rotary positions need pairs"),
    ],
    "qwen3": [
        (
            {"head_dim": None},
            "model.layers.0.self_attn.k_norm.weight: [8] in model.safetensors, but ",
        ),
        ({"head_dim": 7}, "head size 7 is odd; rotary positions need pairs"),
        ({"attention_bias": 1}, "config.json: attention_bias is 1, expected bool"),
    ],
}


@pytest.mark.parametrize(
    ("family", "values", "message"),
    [(family, *case) for family, cases in WRONG.items() for case in cases],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else None,
)
def test_unsupported_config_is_rejected(family: str, values: dict[str, Any], message: str, tmp_path: Path) -> None:
    root = make_model(tmp_path / "hf", family)
    edit(root, **values)
    refused(root, message)


@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
@pytest.mark.parametrize(("used", "expected"), [(False, 0), (True, 16)])
def test_qwen_sliding_window_applies_only_if_enabled(family: str, used: bool, expected: int, tmp_path: Path) -> None:
    root = make_model(tmp_path / "hf", family)
    edit(root, use_sliding_window=used, sliding_window=16)
    out = convert(root, tmp_path / "c")
    assert json.loads((out / "config.json").read_text()).get("sliding_window", 0) == expected
    assert load_checkpoint(out).config.exact_positions == (expected or 256)


@pytest.mark.parametrize(
    ("family", "window", "expected"),
    [("mistral", None, 4096), ("mixtral", None, 0), ("mistral", 32, 32), ("mixtral", 32, 32)],
)
def test_absent_sliding_window_is_the_default_of_the_config_class(
    family: str, window: int | None, expected: int, tmp_path: Path
) -> None:
    root = make_model(tmp_path / "hf", family)
    edit(root, sliding_window=window)
    assert load_checkpoint(convert(root, tmp_path / "c")).config.sliding_window == expected
