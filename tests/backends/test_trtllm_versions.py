# SPDX-License-Identifier: Apache-2.0
"""The facts about each TensorRT-LLM version: complete, well-formed, and consistent with upstream's examples."""

from __future__ import annotations

import argparse
import re
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from trtspec.backends.base import backends_for_method
from trtspec.backends.common.trtllm_versions import (
    BuildOption,
    VersionSpec,
    containers,
    find_version_spec,
    is_release,
    minors_with,
    version_specs,
)
from trtspec.core.errors import TrtspecError

ENGINES = ("1.0", "1.1", "1.2")
LLM_API_ONLY = ("1.3", "1.4")
OPTIONS = [(minor, option) for minor, spec in version_specs().items() for option in spec.options.values()]

# Build commands of examples/*/README.md of NVIDIA/TensorRT-LLM: draft_target_model@11925f62, eagle@06255cb7,
# lookahead@7ed07f06, redrafter@2d234357; Medusa as in triton-inference-server/tutorials@6b48ce4.
README_BUILDS = {
    "draft": "--checkpoint_dir=d --output_dir=e --gemm_plugin=float16 --use_paged_context_fmha=enable"
    " --max_batch_size=4 --max_input_len=3200 --max_seq_len=4800",
    "target": "--checkpoint_dir=t --output_dir=e --gemm_plugin=float16 --use_paged_context_fmha=enable"
    " --speculative_decoding_mode=draft_tokens_external --max_batch_size=4 --max_draft_len=10 --max_input_len=3200"
    " --max_seq_len=4800",
    "medusa": "--checkpoint_dir c --output_dir e --gemm_plugin float16 --use_paged_context_fmha enable"
    " --speculative_decoding_mode medusa --max_batch_size 4",
    "eagle": "--checkpoint_dir c --output_dir e --gemm_plugin float16 --use_paged_context_fmha enable"
    " --speculative_decoding_mode eagle --max_batch_size 4",
    "lookahead": "--checkpoint_dir=c --output_dir=e --gpt_attention_plugin=float16 --gemm_plugin=float16"
    " --max_batch_size=32 --max_input_len=1024 --max_seq_len=2048 --max_beam_width=1 --log_level=error"
    " --max_draft_len=83 --speculative_decoding_mode=lookahead_decoding",
    "redrafter": "--checkpoint_dir c --output_dir e --gemm_plugin float16"
    " --speculative_decoding_mode explicit_draft_tokens --max_batch_size 4",
}


def parser_of(spec: VersionSpec) -> argparse.ArgumentParser:
    """Return the parser that a spec describes; it raises instead of exiting."""
    parser = argparse.ArgumentParser(allow_abbrev=False, exit_on_error=False)
    for option in spec.options.values():
        parser.add_argument(f"--{option.name}", default=option.default, **parsing(option))
    return parser


def parsing(option: BuildOption) -> dict[str, Any]:
    if option.type == "flag":
        return {"action": "store_true"}
    several = {"nargs": "+"} if option.type == "strings" else {}
    return {"type": int if option.type == "int" else str, "choices": option.choices or None, **several}


def test_minor_versions_are_ordered_and_three_build_engines() -> None:
    assert list(version_specs()) == [*ENGINES, *LLM_API_ONLY]
    assert [minor for minor, spec in version_specs().items() if spec.options] == list(ENGINES)
    assert [minor for minor, spec in version_specs().items() if spec.modes] == list(ENGINES)


@pytest.mark.parametrize("spec", version_specs().values(), ids=version_specs())
def test_every_version_has_public_sources(spec: VersionSpec) -> None:
    assert spec.sources
    for source in spec.sources:
        assert re.match(r"https://|[\w.-]+/[\w.-]+(:[\w./-]+@[\w.]+| pulls? \d+|#\d+)", source), source


@pytest.mark.parametrize(("minor", "option"), OPTIONS, ids=[f"{minor}-{option.name}" for minor, option in OPTIONS])
def test_build_option_is_well_formed(minor: str, option: BuildOption) -> None:
    assert option.type in ("int", "str", "path", "flag", "switch", "strings")
    assert all(isinstance(choice, str) for choice in option.choices)  # unquoted yes, no, on and off are not strings
    assert len(set(option.choices)) == len(option.choices)
    assert option.default is None or isinstance(option.default, int if option.type == "int" else str)
    if option.choices and option.default is not None:
        assert option.default in option.choices
    if option.type == "flag":
        assert not option.choices
        assert option.default is None


@pytest.mark.parametrize("minor", ENGINES)
def test_trtllm_build_options_have_the_expected_defaults_and_choices(minor: str) -> None:
    options = version_specs()[minor].options
    defaults = {
        "max_batch_size": 2048,
        "max_input_len": 1024,
        "max_seq_len": None,
        "max_beam_width": 1,
        "max_num_tokens": 8192,
        "max_draft_len": 0,
        "output_timing_cache": "model.cache",
        "workers": 1,
        "gemm_plugin": None,
        "gpt_attention_plugin": "auto",
        "fp8_rowwise_gemm_plugin": "disable",
        "tokens_per_block": 32,
        "context_fmha": "enable",
        "use_paged_context_fmha": "enable",
        "use_fp8_context_fmha": "enable",
        "use_fused_mlp": "enable",
        "reduce_fusion": "disable",
    }
    assert {name: options[name].default for name in defaults} == defaults
    assert options["speculative_decoding_mode"].choices == (
        "draft_tokens_external",
        "lookahead_decoding",
        "medusa",
        "explicit_draft_tokens",
        "eagle",
    )
    assert options["logits_dtype"].choices == ("float16", "float32")
    assert options["kv_cache_type"].choices == ("continuous", "paged", "disabled")
    assert {"fp8", "nvfp4", "disable"} <= set(options["gemm_plugin"].choices)
    assert options["use_paged_context_fmha"].choices == ("enable", "disable")


@pytest.mark.parametrize("minor", ENGINES)
def test_speculative_modes_have_their_stored_flags(minor: str) -> None:
    spec = version_specs()[minor]
    assert spec.modes == {
        "draft_tokens_external": 2,
        "medusa": 4,
        "lookahead_decoding": 8,
        "explicit_draft_tokens": 16,
        "eagle": 32,
    }
    assert set(spec.modes) == set(spec.options["speculative_decoding_mode"].choices)


def test_version_1_2_lacks_only_the_automatic_parallelism_options() -> None:
    first, second, third = (set(version_specs()[minor].options) for minor in ENGINES)
    assert first == second
    assert second - third == {"auto_parallel", "gpus_per_node", "cluster_key"}
    assert third < second
    assert minors_with("auto_parallel") == ["1.0", "1.1"]
    assert minors_with("max_draft_len") == list(ENGINES)
    assert minors_with("max_output_len") == []


@pytest.mark.parametrize("minor", ENGINES)
@pytest.mark.parametrize("build", README_BUILDS)
def test_builds_of_the_upstream_examples_are_accepted(build: str, minor: str) -> None:
    arguments = parser_of(version_specs()[minor]).parse_args(README_BUILDS[build].split())
    assert arguments.checkpoint_dir
    assert arguments.gemm_plugin == "float16"
    assert arguments.paged_state == "enable"


@pytest.mark.parametrize("minor", ENGINES)
@pytest.mark.parametrize("wrong", ["--max_output_len=1", "--speculative_decoding_mode=ngram", "--workers=two"])
def test_invalid_build_arguments_are_rejected(wrong: str, minor: str) -> None:
    parser = parser_of(version_specs()[minor])
    with pytest.raises((argparse.ArgumentError, SystemExit)):
        parser.parse_args([wrong])


def test_releases_match_their_minor_version_and_container_tags_are_unique() -> None:
    releases = [(minor, release) for minor, spec in version_specs().items() for release in spec.releases]
    assert all(release.version.startswith(f"{minor}.") for minor, release in releases)
    assert len({release.version for _, release in releases}) == len(releases)
    tags = list(chain.from_iterable(release.triton for _, release in releases))
    assert tags == sorted(set(tags))
    assert all(re.fullmatch(r"2\d\.\d\d", tag) for tag in tags)
    assert all(bool(release.triton) == bool(release.tensorrt) == (minor in ENGINES) for minor, release in releases)


def test_last_release_with_engines_has_its_container_and_tool_versions() -> None:
    spec = find_version_spec("1.2.1")
    assert spec.minor == "1.2"
    release = spec.release("1.2.1")
    assert release.triton == ("26.04", "26.05", "26.06", "26.07")
    assert (release.tensorrt, release.cuda, release.driver) == ("10.14.1.48", "13.1.0.036", "590.44.01")


def test_containers_have_their_release_and_reported_version() -> None:
    by_tag = {container.tag: container for container in containers()}
    assert by_tag["26.03"].release == "1.2.0"
    assert {tag: each.says for tag, each in by_tag.items() if each.says} == {"25.11": "1.2.0rc2", "26.03": "1.2.0rc8"}
    assert [tag for tag, each in by_tag.items() if each.inferred] == ["25.11"]
    assert find_version_spec("1.2.0rc8") is find_version_spec("1.2.0")
    releases = {release.version for spec in version_specs().values() for release in spec.releases}
    assert {each.release for each in by_tag.values()} <= releases


@pytest.mark.parametrize(
    ("said", "is_one"),
    [("1.2.0", True), ("1.2.0rc8", True), ("1.2.0rc8.post1", True), ("1.2.01", False), ("1.2.1", False), (None, False)],
)
def test_release_candidate_matches_its_release(said: str | None, is_one: bool) -> None:
    assert is_release(said, "1.2.0") is is_one


def test_unknown_version_is_an_error_with_the_supported_versions() -> None:
    with pytest.raises(TrtspecError, match=r"^unsupported TensorRT-LLM version 0\.17\.0\n") as caught:
        find_version_spec("0.17.0")
    assert caught.value.hint is not None
    assert caught.value.hint.startswith("supported: 1.0.0, 1.0.3.2510, 1.1.0, 1.2.0, 1.2.1, 1.3.0rc")


@pytest.mark.parametrize("spec", version_specs().values(), ids=version_specs())
def test_decoding_type_has_fields_for_its_required_keys(spec: VersionSpec) -> None:
    for method, decoding_type in spec.api.methods.items():
        assert "llmapi" in backends_for_method(method)
        assert set(decoding_type.required) <= set(decoding_type.fields)
        assert len(set(decoding_type.fields)) == len(decoding_type.fields)
        assert spec.api.draft_key in decoding_type.fields
        assert decoding_type.required[0] in ("max_draft_len", "num_nextn_predict_layers")


@pytest.mark.parametrize(
    ("minor", "draft_key", "draft_target", "eagle3", "mtp_len"),
    [
        ("1.0", "speculative_model_dir", "DraftTarget", "Eagle", "num_nextn_predict_layers"),
        ("1.1", "speculative_model_dir", "DraftTarget", "Eagle", "num_nextn_predict_layers"),
        ("1.2", "speculative_model", "DraftTarget", "Eagle", "num_nextn_predict_layers"),
        ("1.3", "speculative_model", "Draft_Target", "Eagle3", "max_draft_len"),
        ("1.4", "speculative_model", "Draft_Target", "Eagle3", "max_draft_len"),
    ],
)
def test_speculation_names_match_the_version(
    minor: str, draft_key: str, draft_target: str, eagle3: str, mtp_len: str
) -> None:
    llmapi = version_specs()[minor].api
    assert llmapi.draft_key == draft_key
    assert llmapi.methods["draft_target"].name == draft_target
    assert llmapi.methods["eagle3"].name == eagle3
    assert llmapi.methods["ngram"].name == "NGram"
    assert llmapi.methods["mtp"].required == (mtp_len,)
    assert not {"medusa", "eagle", "lookahead", "redrafter"} & set(llmapi.methods)


def test_eagle3_fields_exist_only_in_their_versions() -> None:
    fields = {minor: set(spec.api.methods["eagle3"].fields) for minor, spec in version_specs().items()}

    def having(field: str) -> list[str]:
        return [minor for minor in fields if field in fields[minor]]

    assert having("max_concurrency") == ["1.1", "1.2", "1.3", "1.4"]
    assert having("draft_len_schedule") == ["1.2", "1.3", "1.4"]
    assert having("acceptance_window") == ["1.2"]
    assert having("acceptance_rate_window_size") == ["1.3", "1.4"]
    assert having("eagle3_one_model") == ["1.0", "1.1", "1.2"]
    assert having("eagle_choices") == ["1.0", "1.1", "1.2", "1.3"]


def test_documentation_names_the_last_release_with_engines() -> None:
    text = (Path(__file__).parents[2] / "docs" / "tensorrt-llm.md").read_text(encoding="utf-8")
    last = [release.version for minor in ENGINES for release in version_specs()[minor].releases][-1]
    assert f"**TensorRT engines end with {last}.**" in text
    assert "triton-inference-server/tensorrtllm_backend@f526fc5" in text


def test_documented_versions_match_the_version_specs() -> None:
    text = (Path(__file__).parents[2] / "docs" / "tensorrt-llm.md").read_text(encoding="utf-8")
    documented = re.findall(r"^\| (\d[^ |]+) \| (.+?) +\|$", text, re.MULTILINE)
    ways = {minor: "engines, LLM API" if minor in ENGINES else "LLM API" for minor in version_specs()}
    assert [(version, re.sub(r" *\| *", "|", rest)) for version, rest in documented] == [
        (
            release.version,
            "|".join([ways[minor], ", ".join(release.triton), release.tensorrt, release.cuda, release.driver]),
        )
        for minor, spec in version_specs().items()
        for release in spec.releases
    ]


@pytest.mark.trtllm
def test_installed_trtllm_build_matches_its_contract() -> None:
    build = pytest.importorskip("tensorrt_llm.commands.build", reason="no trtllm-build is installed")
    from tensorrt_llm import __version__

    actions = {action.option_strings[0].removeprefix("--"): action for action in build.parse_arguments()._actions[1:]}
    options = find_version_spec(__version__).options
    assert set(actions) == set(options)
    choices = {name: set(action.choices) for name, action in actions.items() if action.choices}
    assert choices == {
        name: set(option.choices)
        for name, option in options.items()
        if option.choices and name not in ("kv_cache_type", "paged_kv_cache")  # whose types check them
    }


def test_fields_of_a_later_candidate_are_absent_before_it() -> None:
    api = find_version_spec("1.4.0rc4").api
    added = {"moe_tactic", "enable_confidence_scheduling", "confidence_min_predicted_gain"}
    assert added.isdisjoint(api.fields("dspark", "1.4.0rc1"))
    assert added <= {*api.fields("dspark", "1.4.0rc4")}
    assert added <= {*api.fields("dspark", "1.4.0")}
    assert api.since.keys() <= {name for kind in api.methods.values() for name in kind.fields}
