# SPDX-License-Identifier: Apache-2.0
"""Emitted SGLang arguments, and rejected recipes with their hints; test_server_args.py uses the real ServerArgs."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.backends.sglang.cases import CASES, LLAMA, MODELS, NET, SCHEDULE, case
from tests.backends.source_contexts import facts, said, source_context
from tests.conftest import Run
from trtspec.backends.sglang import artifact
from trtspec.backends.sglang.arguments import adaptive_config, engine_arguments
from trtspec.backends.sglang.check import check
from trtspec.backends.sglang.versions import methods, releases
from trtspec.core.errors import DeployError
from trtspec.methods.base import find_method

TARGET, DRAFT = "../../checkpoints/target", "../../checkpoints/draft"
NEWEST = "0.5.23"


def emitted(name: str, **changes: Any) -> dict[str, Any]:
    context, _, draft = case(name, **changes)
    document = engine_arguments(context, TARGET, DRAFT if draft else None)
    return {key.removeprefix("speculative_"): value for key, value in document.items()}


def found(name: str, version: str = NEWEST, **changes: Any) -> dict[str, Any]:
    return said(check(case(name, version, **changes)[0]))


@pytest.mark.parametrize("name", CASES)
def test_cases_accepted_by_server_args_have_no_errors(name: str) -> None:
    assert [each for each in found(name).values() if each.severity == "error"] == []


def test_every_method_has_a_case() -> None:
    assert {method for method, *_ in CASES.values()} == {*methods()}


@pytest.mark.parametrize(
    ("name", "algorithm", "steps", "topk", "tokens"),
    [
        ("draft_target", "STANDALONE", 5, 1, 6),
        ("ngram", "NGRAM", 8, 1, 9),
        ("eagle", "EAGLE", 3, 4, 13),
        ("eagle3", "EAGLE3", 3, 1, 4),
        ("eagle3_tree", "EAGLE3", find_method("eagle3").default_draft_len, 4, 13),
        ("mtp", "NEXTN", 3, 1, 4),
        ("gemma4_mtp", "FROZEN_KV_MTP", 3, 1, 4),
        ("dflash", "DFLASH", 1, 1, 8),
        ("dspark", "DSPARK", 1, 1, 8),
        ("uno", "UNO", 1, 1, 8),
        ("uno_tree", "UNO", find_method("uno").default_draft_len, 4, 13),
    ],
)
def test_step_verifies_one_token_more_than_it_drafts(name: str, algorithm: str, steps, topk, tokens) -> None:
    document = emitted(name)
    assert document["algorithm"] == algorithm
    assert (document["num_steps"], document["eagle_topk"], document["num_draft_tokens"]) == (steps, topk, tokens)


def test_recipe_is_converted_to_sglang_arguments() -> None:
    document = emitted("draft_fp8")
    assert (document["model_path"], document["draft_model_path"]) == (TARGET, DRAFT)
    assert (document["quantization"], document["draft_model_quantization"]) == ("fp8", "unquant")
    assert (document["kv_cache_dtype"], document["max_running_requests"]) == ("fp8_e4m3", 4)
    assert (document["context_length"], document["skip_tokenizer_init"]) == (2048, True)
    assert emitted("tensor")["tp_size"] == 2
    assert emitted("ngram")["ngram_max_trie_depth"] == 4 + 8
    assert emitted("dspark_shorter")["dspark_block_size"] == 4


def test_structured_output_needs_the_tokenizer_of_sglang() -> None:
    assert emitted("eagle3", serving__structured_output=True)["skip_tokenizer_init"] is False
    for name, version in (("eagle3", "0.5.12"), ("dflash", "0.5.17"), ("dspark", NEWEST)):
        assert not [key for key in found(name, version, serving__structured_output=True) if "structured" in key]


def test_hub_sources_have_their_revisions() -> None:
    target = {"target__model": "org/target", "target__revision": "a" * 40}
    draft = {"speculation__draft__model": "org/draft", "speculation__draft__revision": "b" * 40}
    context = case("draft_target", **target, **draft)[0]
    document = engine_arguments(context, "org/target", "org/draft")
    assert document["revision"] == "a" * 40
    assert document["speculative_draft_model_revision"] == "b" * 40


@pytest.mark.parametrize("name", CASES)
def test_emitted_arguments_preserve_exact_acceptance(name: str) -> None:
    assert not [key for key in emitted(name) if "threshold" in key]
    assert emitted(name).get("use_block_verification", False) == (case(name)[0].recipe.speculation.verify == "block")


def test_schedule_has_one_draft_length_per_batch_size() -> None:
    """At most 4 requests run, and the last 2 are beyond the schedule."""
    context = case("eagle3_schedule")[0]
    steps = {key: entry["candidate_steps"] for key, entry in adaptive_config(context).items()}
    assert steps == {"1": [4], "2": [2], "3": [0]}
    document = emitted("eagle3_schedule")
    assert (document["adaptive"], document["adaptive_config"]) == (True, "./1/adaptive.json")
    whole = case("eagle3_schedule", speculation__schedule=[{"max_batch": 4, "draft_len": 4}])[0]
    assert list(adaptive_config(whole)) == ["1"]
    assert adaptive_config(case("eagle3")[0]) == {}


@pytest.mark.parametrize(
    ("name", "version", "changes", "place", "message"),
    [
        ("dspark", "0.5.14", {}, "speculation.method method", "SGLang 0.5.14 does not support DSPARK"),
        ("eagle3_schedule", "0.5.12", {}, "speculation.schedule version", "0.5.12 does not adapt the draft length"),
        ("eagle3_block", "0.5.21", {}, "speculation.verify version", "0.5.21 does not support block verification"),
        ("ngram", NEWEST, {"speculation__schedule": SCHEDULE}, "speculation.schedule not-supported", "not for ngram"),
        (
            "ngram",
            NEWEST,
            {"speculation__verify": "block"},
            "speculation.verify not-supported",
            "block verification with ngram",
        ),
        ("eagle3_tree", NEWEST, {"speculation__schedule": SCHEDULE}, "speculation.schedule not-supported", "a tree"),
        (
            "eagle",
            NEWEST,
            {"speculation__options": {}},
            "speculation.options.choices tree",
            "does not support static trees",
        ),
        ("eagle", NEWEST, {"draft_facts": facts(MODELS["eagle3"])}, "speculation.draft.model class", "Eagle3, but"),
        ("eagle3", NEWEST, {"draft_facts": facts(NET)}, "speculation.draft.model class", "is LlamaForCausalLM, but"),
        (
            "dflash",
            NEWEST,
            {"draft_facts": facts(MODELS["dflash"] | {"architectures": ["Qwen3XPressModel"]})},
            "speculation.draft.model variant",
            "is an XPress net, whose refiner SGLang 0.5.23 does not compute",
        ),
        (
            "dflash",
            "0.5.18",
            {"draft_facts": facts(MODELS["dflash"] | {"architectures": ["DFlash2DraftModel"]})},
            "speculation.draft.model variant",
            "is a DFlash2 net",
        ),
        (
            "dflash",
            NEWEST,
            {"draft_facts": facts(MODELS["dflash"] | {"selector_rank": 256})},
            "speculation.draft.model variant",
            "is a DFlash2 net (selector_rank), but its class is not",
        ),
        (
            "dflash",
            NEWEST,
            {"speculation__draft_len": 8},
            "speculation.draft_len out-of-range",
            "blocks of 7 draft tokens",
        ),
        (
            "dspark",
            NEWEST,
            {"speculation__draft_len": 9},
            "speculation.draft_len out-of-range",
            "blocks of 8 draft tokens",
        ),
        ("mtp", NEWEST, {"target_facts": facts(LLAMA)}, "speculation.method no-draft", "lacks MTP layers"),
        (
            "tensor",
            NEWEST,
            {"target__parallel": {"pipeline": 2}},
            "target.parallel.pipeline parallel",
            "pipeline parallelism",
        ),
        (
            "draft_target",
            NEWEST,
            {"target__quantization": {"weights": "fp8_rowwise"}},
            "target.quantization.weights quantization",
            f"SGLang {NEWEST} does not quantize to fp8_rowwise on load",
        ),
        (
            "eagle3_block",
            NEWEST,
            {"draft_facts": facts(MODELS["eagle3"] | {"draft_vocab_size": 256})},
            "speculation.verify vocabulary",
            "the drafter has a reduced vocabulary",
        ),
        (
            "eagle3_tree",
            NEWEST,
            {"speculation__options": {"top_k": 4, "nodes": 12, "lossy": True}, "gates__lossless": False},
            "speculation.options.lossy lossy",
            "trtspec keeps its accept thresholds at 1.0",
        ),
        (
            "mtp",
            "0.5.12",
            {"target_facts": facts(MODELS["glm"] | {"architectures": ["OtherForCausalLM"]})},
            "speculation.method version",
            "does not draft with MTP layers of OtherForCausalLM",
        ),
        (
            "dflash",
            "0.5.16",
            {"serving__structured_output": True},
            "serving.structured_output version",
            "SGLang 0.5.16 does not support structured output with dflash",
        ),
    ],
)
def test_unsupported_recipe_is_an_error_with_a_hint(name: str, version: str, changes, place: str, message: str) -> None:
    diagnostic = found(name, version, **changes)[place]
    assert message in diagnostic.message
    assert (diagnostic.severity, bool(diagnostic.hint)) == ("error", True)


def test_eagle3_drafter_with_method_eagle_hints_at_its_method() -> None:
    diagnostic = found("eagle", draft_facts=facts(MODELS["eagle3"]))["speculation.draft.model class"]
    assert diagnostic.hint == "use method: eagle3"
    assert diagnostic.source == "sgl-project/sglang#21272"


def test_dflash2_net_is_accepted_by_releases_with_its_class() -> None:
    net = facts(MODELS["dflash"] | {"architectures": ["DFlash2DraftModel"], "selector_rank": 256})
    assert not [place for place in found("dflash", "0.5.19", draft_facts=net) if "draft.model" in place]


def test_newer_release_supports_all_methods_of_older_releases() -> None:
    known = list(releases().values())
    for before, after in pairwise(known):
        assert {*before.methods} <= {*after.methods}
        assert all({*nets} <= {*after.nets[method]} for method, nets in before.nets.items())
        assert {*before.mtp_targets} <= {*after.mtp_targets}
    assert known[-1].version == NEWEST
    assert {*known[-1].methods} == {*methods()}


def test_method_of_no_release_causes_no_sglang_diagnostics() -> None:
    assert said(check(source_context("sglang", NEWEST, "lookahead"))) == {}


@pytest.mark.slow
def test_artifact_records_its_model_path_and_sglang_version(recipe: Path, trtspec: Run) -> None:
    ended = trtspec("build", recipe, "--set", "engine.backend=sglang")
    assert ended.code == 0, ended.err
    root = recipe.parent / "build" / "tiny"
    document = json.loads((root / "model_repository/tensorrt_llm/1/engine.json").read_text())
    assert document["model_path"] == TARGET
    manifest = json.loads((root / "manifest.json").read_text())
    assert manifest["tools"]["sglang"] == NEWEST


def test_deploy_requires_the_checked_sglang_version(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    manifest = cast(Any, SimpleNamespace(recipe=SimpleNamespace(engine=SimpleNamespace(version=NEWEST))))
    monkeypatch.setattr("trtspec.backends.serving.find_spec", lambda name: None)
    with pytest.raises(DeployError, match="sglang is not installed here"):
        artifact.check_installed(tmp_path, manifest)
    monkeypatch.setattr("trtspec.backends.serving.find_spec", lambda name: object())
    monkeypatch.setattr(artifact, "installed_version", lambda name: "0.5.22")
    with pytest.raises(DeployError, match=r"SGLang 0\.5\.22 is installed, .* checked for 0\.5\.23"):
        artifact.check_installed(tmp_path, manifest)
