# SPDX-License-Identifier: Apache-2.0
"""Gemma 4 assistants: which one can draft for a target, and what each engine is told."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests._support.gemma4 import ASSISTANT, TARGET, changed, text_target
from tests.backends.source_contexts import said, source_context
from trtspec.backends.base import backends_for_method
from trtspec.backends.context import PlanContext
from trtspec.backends.llmapi.arguments import model_yaml
from trtspec.backends.llmapi.check import check as check_llmapi
from trtspec.backends.sglang.check import check as check_sglang
from trtspec.backends.vllm.arguments import model_json
from trtspec.backends.vllm.check import check as check_vllm
from trtspec.checkpoints.source import Source
from trtspec.core.errors import CheckpointError
from trtspec.methods.base import HeadTarget, find_method, methods
from trtspec.methods.gemma4_mtp import assistant_type, check_pair

SHARED = ["sliding_attention", "full_attention"] * 3
UNIFIED = {"architectures": ["Gemma4UnifiedAssistantForCausalLM"], "model_type": "gemma4_unified_assistant"}
CHECKS = {"llmapi": check_llmapi, "sglang": check_sglang, "vllm": check_vllm}
NEWEST = {"llmapi": "1.4.0rc4", "sglang": "0.5.23", "vllm": "0.33.0"}


def source(config: dict[str, Any]) -> Source:
    return Source(Path("/nowhere"), config, {}, {})


def context(backend: str, version: str = "", target: Any = TARGET, draft: Any = ASSISTANT, **more: Any) -> PlanContext:
    known = {"target_facts": source(target), "draft_facts": source(draft)}
    return source_context(backend, version or NEWEST[backend], "gemma4_mtp", **{**known, **more})


def errors(backend: str, version: str = "", **more: Any) -> dict[str, Any]:
    found = said(CHECKS[backend](context(backend, version, **more)))
    return {place: each for place, each in found.items() if each.severity == "error"}


def codes(target: dict[str, Any], draft: dict[str, Any], max_seq_len: int = 2048) -> set[str]:
    found = list(check_pair(source(target), source(draft), max_seq_len))
    assert all(each.hint for each in found)
    return {each.code for each in found}


def test_assistant_drafts_for_its_target_and_its_text_model() -> None:
    assert codes(TARGET, ASSISTANT) == codes(text_target(), ASSISTANT) == set()
    assert codes(TARGET | {"model_type": "gemma4_unified"}, ASSISTANT | UNIFIED) == set()


@pytest.mark.parametrize(
    ("target", "draft", "code"),
    [
        (TARGET, text_target(), "class"),
        (TARGET | {"model_type": "gemma3"}, ASSISTANT, "family"),
        (changed(TARGET, hidden_size=256), ASSISTANT, "hidden-size"),
        (TARGET, changed(ASSISTANT, vocab_size=510), "vocabulary"),
        (TARGET, changed(ASSISTANT, num_key_value_heads=4), "key-heads-sliding_attention"),
        (changed(TARGET, global_head_dim=64), ASSISTANT, "key-heads-full_attention"),
        (changed(TARGET, layer_types=["sliding_attention"] * 6), ASSISTANT, "layers-full_attention"),
        (changed(TARGET, layer_types=["full_attention"] + 5 * ["sliding_attention"], num_kv_shared_layers=5),
         ASSISTANT, "layers-sliding_attention"),
        (TARGET, changed(ASSISTANT, max_position_embeddings=1024), "positions"),
        (TARGET, changed(ASSISTANT, use_ordered_embeddings=True, num_centroids=100), "clusters"),
    ],
)  # fmt: skip
def test_another_pair_is_refused(target: dict[str, Any], draft: dict[str, Any], code: str) -> None:
    assert codes(target, draft) == {code}


def test_assistant_is_recognized_by_its_type_or_class_and_suggested() -> None:
    assert assistant_type(source(ASSISTANT)) == "gemma4_assistant"
    assert assistant_type(source({"architectures": UNIFIED["architectures"]})) == "gemma4_unified_assistant"
    assert assistant_type(source(TARGET)) == assistant_type(source({})) == ""
    found = {name: each.suggest and each.suggest(source(ASSISTANT)) for name, each in methods().items()}
    assert min((suggestion.rank, name) for name, suggestion in found.items() if suggestion) == (0, "gemma4_mtp")


def test_method_runs_on_engines_that_load_the_checkpoints() -> None:
    assert backends_for_method("gemma4_mtp") == ["edge_llm", "llmapi", "sglang", "vllm"]


@pytest.mark.parametrize("backend", CHECKS)
def test_newest_version_of_each_engine_accepts_the_pair(backend: str) -> None:
    assert errors(backend) == {}
    found = errors(backend, draft=changed(ASSISTANT, backbone_hidden_size=256))
    assert list(found) == ["speculation.draft.model hidden-size"]


@pytest.mark.parametrize("backend", CHECKS)
def test_draft_of_another_class_is_refused_once(backend: str) -> None:
    assert list(errors(backend, draft=text_target())) == ["speculation.draft.model class"]


def test_vllm_is_told_mtp_with_a_model() -> None:
    document = model_json(context("vllm", speculation__draft_len=3), "target", "draft")
    said_to = document["speculative_config"]
    assert (said_to["method"], said_to["model"], said_to["num_speculative_tokens"]) == ("mtp", "draft", 3)


@pytest.mark.parametrize(
    ("version", "draft", "first"), [("0.20.2", ASSISTANT, "0.21.0"), ("0.22.1", ASSISTANT | UNIFIED, "0.23.0")]
)
def test_older_vllm_is_refused_with_the_first_version(version: str, draft: dict[str, Any], first: str) -> None:
    found = errors("vllm", version, draft=draft)
    assert f"supported by vLLM {first} to " in found["speculation.draft.model version"].hint
    assert errors("vllm", first, draft=draft) == {}


def test_older_sglang_is_refused_with_the_first_version() -> None:
    found = errors("sglang", "0.5.12", draft=ASSISTANT | UNIFIED)
    assert "SGLang 0.5.13 or later" in found["speculation.draft.model class"].hint
    assert errors("sglang", "0.5.12") == errors("sglang", "0.5.13", draft=ASSISTANT | UNIFIED) == {}


def test_llm_api_is_told_mtp_with_a_model_and_reuses_no_blocks() -> None:
    document = model_yaml(context("llmapi", speculation__draft_len=3), "target", "draft")
    assert document["speculative_config"] == {"decoding_type": "MTP", "max_draft_len": 3, "speculative_model": "draft"}
    assert document["kv_cache_config"]["enable_block_reuse"] is False
    plain = source_context("llmapi", NEWEST["llmapi"], target_facts=source(TARGET))
    assert model_yaml(plain, "target", None)["kv_cache_config"]["enable_block_reuse"] is True


@pytest.mark.parametrize(
    ("version", "more", "place", "hint"),
    [
        ("1.2.1", {}, "speculation.method method", "1.3.0rc27"),
        ("1.3.0rc22", {}, "speculation.method method", "1.3.0rc27"),
        ("1.4.0rc4", {"draft": ASSISTANT | UNIFIED}, "speculation.draft.model class", "vLLM and SGLang"),
        ("1.4.0rc4", {"target__parallel": {"pipeline": 2}}, "target.parallel.pipeline parallel", "tensor parallelism"),
        ("1.4.0rc4", {"speculation__draft_len": 4, "speculation__schedule": [{"max_batch": 2, "draft_len": 4}]},
         "speculation.schedule version", "remove schedule"),
    ],
)  # fmt: skip
def test_llm_api_refuses(version: str, more: dict[str, Any], place: str, hint: str) -> None:
    found = errors("llmapi", version, **more)
    assert list(found) == [place]
    assert hint in found[place].hint


def test_heads_of_converted_targets_are_refused(tmp_path: Path) -> None:
    read, target = find_method("gemma4_mtp").read_head, source_context("vllm", "0.33.0").target_config
    assert read is not None
    assert target is not None
    base = HeadTarget(target, (), 3)
    for config, message in ((ASSISTANT, "an assistant for Gemma 4, not for Llama"), ({}, "not a Gemma 4 assistant")):
        with pytest.raises(CheckpointError, match=message):
            read(replace(source(config), root=tmp_path), base, find_method("gemma4_mtp").parse({}))
