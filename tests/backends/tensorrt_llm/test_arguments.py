# SPDX-License-Identifier: Apache-2.0
"""The arguments of trtllm-build: exact for each speculation method, and with additions of a recipe."""

from __future__ import annotations

from typing import Any

import pytest

from tests.backends.contexts import make_context, make_pair
from trtspec.backends.common.trtllm_versions import find_version_spec
from trtspec.backends.context import PlanContext
from trtspec.backends.tensorrt_llm import BACKEND
from trtspec.backends.tensorrt_llm.specs import build_arguments
from trtspec.core.errors import TrtspecError


def parsed(role: Any, case: PlanContext) -> dict[str, str]:
    """Return the arguments as parsed from a command line: options by name, "" for flags."""
    found: dict[str, str] = {}
    words = build_arguments(role, case)
    for number, word in enumerate(words):
        if word.startswith("--"):
            assert word not in found, f"{word} is repeated"
            follows = words[number + 1] if number + 1 < len(words) else "--"
            found[word.removeprefix("--")] = "" if follows.startswith("--") else follows
    return found


def test_plain_engine_has_exact_arguments() -> None:
    assert " ".join(build_arguments("target", make_context())) == (
        "--max_batch_size 4 --max_input_len 1024 --max_seq_len 2048 --max_num_tokens 8192 --opt_num_tokens 4"
        " --max_beam_width 1 --kv_cache_type paged --tokens_per_block 32 --remove_input_padding enable"
        " --context_fmha enable --use_paged_context_fmha enable --use_fp8_context_fmha disable"
        " --gpt_attention_plugin auto --gemm_plugin auto --logits_dtype float32 --workers 1"
    )


def test_engine_pair_has_exact_arguments() -> None:
    case = make_pair(speculation__draft_len=10, target__parallel={"tensor": 2})
    target, draft = (build_arguments(role, case) for role in ("target", "draft"))
    assert " ".join(target[-7:]) == (
        "--workers 2 --speculative_decoding_mode draft_tokens_external --max_draft_len 10 --gather_generation_logits"
    )
    assert " ".join(draft[-3:]) == "--workers 1 --gather_generation_logits"
    assert parsed("target", case)["opt_num_tokens"] == "44"
    assert parsed("draft", case)["opt_num_tokens"] == "4"


def test_logits_are_not_gathered_without_use_draft_logits() -> None:
    case = make_pair(speculation__options={"use_draft_logits": False})
    assert "gather_generation_logits" not in parsed("target", case) | parsed("draft", case)


@pytest.mark.parametrize(
    ("method", "options", "mode", "draft_len"),
    [
        ("ngram", {}, "draft_tokens_external", "8"),
        ("medusa", {}, "medusa", "63"),
        ("eagle", {"choices": [[0], [1], [0, 0], [0, 1]]}, "eagle", "4"),
        ("lookahead", {"window": 7, "verification": 7, "ngram": 7}, "lookahead_decoding", "83"),
        ("redrafter", {"beams": 4}, "explicit_draft_tokens", "20"),
    ],
)
def test_speculative_mode_and_draft_len_match_the_method(
    method: str, options: dict[str, Any], mode: str, draft_len: str
) -> None:
    case = make_context("vicuna-7b", speculation__method=method, speculation__options=options)
    told = parsed("target", case)
    assert (told["speculative_decoding_mode"], told["max_draft_len"]) == (mode, draft_len)


@pytest.mark.parametrize(
    ("weights", "kv_cache", "paged", "fp8", "gemm"),
    [
        ("none", "none", "enable", "disable", "auto"),
        ("fp8", "none", "enable", "disable", "disable"),
        ("fp8", "fp8", "enable", "enable", "disable"),
        ("fp8_rowwise", "none", "enable", "disable", "auto"),
        # the expected results of builder.py's build()
        ("none", "fp8", "disable", "disable", "auto"),
        ("fp8_rowwise", "fp8", "disable", "disable", "auto"),
    ],
)
def test_attention_and_gemm_options_match_the_quantization(
    weights: str, kv_cache: str, paged: str, fp8: str, gemm: str
) -> None:
    told = parsed("target", make_context(target__quantization={"weights": weights, "kv_cache": kv_cache}))
    assert (told["use_paged_context_fmha"], told["use_fp8_context_fmha"], told["gemm_plugin"]) == (paged, fp8, gemm)
    assert told.get("fp8_rowwise_gemm_plugin") == ("auto" if weights == "fp8_rowwise" else None)


@pytest.mark.parametrize(
    ("method", "changes", "tokens"),
    [
        ("none", {}, 8192),
        ("none", {"engine__max_num_tokens": 100}, 100),
        ("none", {"engine__max_num_tokens": 16}, 32),  # a block
        ("none", {"engine__max_seq_len": 512}, 2048),  # the tokens of all texts
        ("medusa", {"engine__max_seq_len": 64, "engine__max_batch_size": 1}, 64),  # of all texts, then the drafts
        ("medusa", {"engine__max_batch_size": 256}, 16384),
    ],
)
def test_max_num_tokens_is_adjusted_as_in_upstream(method: str, changes: dict[str, Any], tokens: int) -> None:
    case = make_context("vicuna-7b", speculation__method=method, **changes)
    assert parsed("target", case)["max_num_tokens"] == str(tokens)


def test_recipe_extra_options_override_defaults() -> None:
    extra = {"gemm_plugin": "bfloat16", "use_fused_mlp": False, "fast_build": True, "monitor_memory": False}
    case = make_context(engine__extra={**extra, "lora_target_modules": "attn_q attn_v", "opt_num_tokens": 8})
    words = " ".join(build_arguments("target", case))
    assert words.endswith("--workers 1 --use_fused_mlp disable --fast_build --lora_target_modules attn_q attn_v")
    assert "--gemm_plugin bfloat16" in words
    assert "--opt_num_tokens 8" in words
    assert "auto --gemm_plugin" in words  # in its own position, and once
    assert words.count("gemm_plugin") == 1


def test_multiple_profiles_omit_opt_num_tokens() -> None:
    told = parsed("target", make_context(engine__extra={"multiple_profiles": True}))
    assert told["multiple_profiles"] == "enable"
    assert "opt_num_tokens" not in told


@pytest.mark.parametrize("version", BACKEND.versions())
@pytest.mark.parametrize("method", ["none", "draft_target", "ngram", "medusa", "eagle", "lookahead", "redrafter"])
def test_every_version_accepts_every_argument(version: str, method: str) -> None:
    draft = "llama-3.2-1b" if method == "draft_target" else None
    case = make_context(draft=draft, version=version, speculation__method=method)
    options = find_version_spec(version).options
    for role in ("target", "draft")[: 2 if draft else 1]:
        for name, value in parsed(role, case).items():
            choices = options[name].choices
            assert (options[name].type == "flag") == (value == "")
            assert not choices or value in choices


def test_invalid_option_or_missing_draft_engine_is_an_error() -> None:
    with pytest.raises(TrtspecError, match=r"engine\.extra\.gemm_plugin: gemm_plugin: 'fp16' is not a valid option"):
        build_arguments("target", make_context(engine__extra={"gemm_plugin": "fp16"}))
    with pytest.raises(TrtspecError, match="the recipe does not have a draft engine"):
        build_arguments("draft", make_context())


def test_supported_versions_are_those_with_trtllm_build() -> None:
    versions = BACKEND.versions()
    assert versions[-1] == "1.2.1"
    assert all(version < "1.3" for version in versions)
