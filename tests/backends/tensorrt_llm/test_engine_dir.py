# SPDX-License-Identifier: Apache-2.0
"""Engine directories that match the request, and others; every difference is reported."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests._support.tiny import convert, make_llama
from tests.doubles.builder import main
from tests.methods import eagle_heads, heads, recurrent
from trtspec.backends.common.trtllm_versions import find_version_spec
from trtspec.backends.tensorrt_llm.engine_dir import ExpectedEngine, check_engine, parse_arguments
from trtspec.checkpoints.sharding import ParallelMapping
from trtspec.core.errors import StepError

ARGUMENTS = (
    "--max_batch_size", "4", "--max_input_len", "64", "--max_seq_len", "128", "--max_num_tokens", "512",
    "--max_beam_width", "1", "--kv_cache_type", "paged", "--use_paged_context_fmha", "enable",
    "--use_fp8_context_fmha", "disable", "--gather_generation_logits",
)  # fmt: skip
EXTERNAL = ("--speculative_decoding_mode", "draft_tokens_external", "--max_draft_len", "5")


def expected(checkpoint: Path, *arguments: str) -> ExpectedEngine:
    config = json.loads((checkpoint / "config.json").read_text())
    return ExpectedEngine(parse_arguments(arguments), config, "1.2.1", find_version_spec("1.2.1").modes)


def build(checkpoint: Path, out: Path, *arguments: str) -> Path:
    cache = out.with_suffix(".cache")
    main(
        ["--checkpoint_dir", str(checkpoint), "--output_dir", str(out), "--output_timing_cache", str(cache), *arguments]
    )
    return out


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_llama(tmp_path_factory.mktemp("source"))


@pytest.fixture(scope="module")
def checkpoint(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return convert(source, tmp_path_factory.mktemp("checkpoint"), mapping=ParallelMapping(2))


@pytest.fixture
def engine(checkpoint: Path, tmp_path: Path) -> Path:
    """An engine of two ranks that matches the request."""
    return build(checkpoint, tmp_path / "engine", *ARGUMENTS, *EXTERNAL)


def change(engine: Path, key: str, value: object) -> None:
    config = json.loads((engine / "config.json").read_text())
    *sections, last = key.split(".")
    section = config
    for each in sections:
        section = section[each]
    section[last] = value
    (engine / "config.json").write_text(json.dumps(config))


def problems(engine: Path, wanted: ExpectedEngine) -> list[str]:
    with pytest.raises(StepError) as caught:
        check_engine(engine, wanted)
    first, *rest = caught.value.message.splitlines()
    assert first == "the engine differs from the request:"
    return [line.strip() for line in rest]


def test_arguments_are_parsed_to_options() -> None:
    found = parse_arguments(["--a", "1", "--flag", "--many", "x", "y", "--b=2", "--a", "3", "--negative", "-1"])
    assert found == {"a": "3", "flag": "", "many": "x", "b": "2", "negative": "-1"}


def test_engine_as_requested_is_accepted(engine: Path, checkpoint: Path) -> None:
    check_engine(engine, expected(checkpoint, *ARGUMENTS, *EXTERNAL))


@pytest.mark.parametrize(("version", "spelled"), [("1.0.0", "PAGED"), ("1.1.0", "PAGED"), ("1.2.1", "paged")])
def test_kv_cache_type_is_accepted_in_the_spelling_of_its_version(
    version: str, spelled: str, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRTLLM_DOUBLE_VERSION", version)
    engine = build(checkpoint, tmp_path / "engine", *ARGUMENTS)
    assert json.loads((engine / "config.json").read_text())["build_config"]["kv_cache_type"] == spelled
    check_engine(engine, replace(expected(checkpoint, *ARGUMENTS), version=version))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("build_config.gather_generation_logits", 1),
        ("build_config.gather_context_logits", 0),
        ("build_config.plugin_config.context_fmha", 1),
        ("version", "1.2.1rc3"),
    ],
)
def test_numeric_flag_or_release_candidate_is_accepted(key: str, value: object, engine: Path, checkpoint: Path) -> None:
    change(engine, key, value)
    check_engine(engine, expected(checkpoint, *ARGUMENTS, *EXTERNAL))


@pytest.mark.parametrize("options", [{}, {"mapping": ParallelMapping(2)}], ids=["one", "tp2"])
def test_engines_with_internal_drafters_are_accepted(options: dict[str, Any], source: Path, tmp_path: Path) -> None:
    medusa = heads.save_heads(tmp_path / "heads", heads.random_heads())
    net = eagle_heads.save_head(tmp_path / "net", eagle_heads.random_head())
    drafter = recurrent.random_drafter().save(tmp_path / "drafter")
    made = {
        "medusa": heads.convert_with(source, medusa, tmp_path / "medusa", **options),
        "eagle": eagle_heads.convert_with(source, net, tmp_path / "eagle", {}, **options),
        "explicit_draft_tokens": recurrent.convert_with(source, drafter, tmp_path / "recurrent", **options),
    }
    for mode, checkpoint in made.items():
        arguments = (*ARGUMENTS, "--speculative_decoding_mode", mode)
        check_engine(build(checkpoint, tmp_path / mode / "engine", *arguments), expected(checkpoint, *arguments))


DIFFERENCES: dict[str, tuple[str, object, str]] = {
    "version": ("version", "1.1.0", "version is '1.1.0', expected '1.2.1'"),
    "mode": (
        "build_config.speculative_decoding_mode", 1, "build_config.speculative_decoding_mode is 1, expected 2"
    ),
    "drafts": ("build_config.max_draft_len", 0, "build_config.max_draft_len is 0, expected 5"),
    "length": ("build_config.max_seq_len", 128, "build_config.max_seq_len is 128, expected 133"),
    "batch": ("build_config.max_batch_size", 8, "build_config.max_batch_size is 8, expected 4"),
    "logits": (
        "build_config.gather_generation_logits", False,
        "build_config.gather_generation_logits is False, expected True",
    ),
    "type": ("build_config.max_batch_size", "4", "build_config.max_batch_size is '4', expected 4"),
    "one": ("build_config.max_beam_width", True, "build_config.max_beam_width is True, expected 1"),
    "cache": ("build_config.kv_cache_type", "DISABLED", "build_config.kv_cache_type is 'DISABLED', expected 'paged'"),
    "flag": (
        "build_config.gather_generation_logits", 0,
        "build_config.gather_generation_logits is 0, expected True",
    ),
    "reuse": (
        "build_config.plugin_config.use_paged_context_fmha", False,
        "build_config.plugin_config.use_paged_context_fmha is False, expected True",
    ),
    "division": ("pretrained_config.mapping.tp_size", 1, "pretrained_config.mapping.tp_size is 1, expected 2"),
    "weights": (
        "pretrained_config.quantization.quant_algo", "FP8",
        "pretrained_config.quantization.quant_algo is 'FP8', expected None",
    ),
    "architecture": (
        "pretrained_config.architecture", "x" * 300,
        f"pretrained_config.architecture is '{'x' * 200}...', expected 'LlamaForCausalLM'",
    ),
    "tokens": (
        "build_config.max_num_tokens", 23,
        "build_config.max_num_tokens is 23, too few for 4 requests with 5 draft tokens",
    ),
    "no tokens": ("build_config.max_num_tokens", None, "build_config.max_num_tokens is None, expected a number"),
}  # fmt: skip


@pytest.mark.parametrize(("key", "value", "words"), DIFFERENCES.values(), ids=DIFFERENCES)
def test_difference_is_reported_with_both_values(
    key: str, value: object, words: str, engine: Path, checkpoint: Path
) -> None:
    change(engine, key, value)
    assert words in problems(engine, expected(checkpoint, *ARGUMENTS, *EXTERNAL))


def test_multiple_differences_are_all_reported(engine: Path, checkpoint: Path) -> None:
    change(engine, "build_config", {})
    change(engine, "pretrained_config.mapping", [])
    (engine / "rank1.engine").unlink()
    found = problems(engine, expected(checkpoint, *ARGUMENTS, *EXTERNAL))
    assert "rank1.engine is missing or empty; 2 ranks were requested" in found
    assert "build_config.max_batch_size is missing, expected 4" in found
    assert "pretrained_config.mapping.world_size is missing, expected 2" in found


FILES: dict[str, tuple[Callable[[Path], object], str]] = {
    "empty": (lambda engine: (engine / "rank0.engine").write_bytes(b""), "rank0.engine is missing or empty"),
    "link": (
        lambda engine: ((engine / "rank0.engine").unlink(), (engine / "rank0.engine").symlink_to("rank1.engine")),
        "rank0.engine is missing or empty",
    ),
    "more": (lambda engine: (engine / "rank2.engine").write_bytes(b"x"), "rank2.engine is unexpected; 2 ranks"),
    "no config": (lambda engine: (engine / "config.json").unlink(), "config.json: cannot be read: No such file"),
    "no json": (lambda engine: (engine / "config.json").write_text("{"), "config.json: not valid JSON"),
    "large": (
        lambda engine: (engine / "config.json").write_text(" " * (1 << 20) + "{}"),
        "config.json: larger than 1,048,576 bytes",
    ),
    "deep": (lambda engine: (engine / "config.json").write_text('{"a":' * 99 + "1" + "}" * 99), "nested more than 32"),
    "pipe": (
        lambda engine: ((engine / "config.json").unlink(), os.mkfifo(engine / "config.json")),
        "config.json: not a regular file",
    ),
}


@pytest.mark.parametrize(("damage", "words"), FILES.values(), ids=FILES)
def test_damaged_engine_files_are_reported(
    damage: Callable[[Path], object], words: str, engine: Path, checkpoint: Path
) -> None:
    damage(engine)
    assert any(words in line for line in problems(engine, expected(checkpoint, *ARGUMENTS, *EXTERNAL)))


def test_medusa_draft_len_other_than_requested_is_reported(source: Path, tmp_path: Path) -> None:
    """Medusa's own number of draft tokens is the default, and the argument overrides it."""
    head_root = heads.save_heads(tmp_path / "heads", heads.random_heads())
    checkpoint = heads.convert_with(source, head_root, tmp_path / "checkpoint")
    mode = (*ARGUMENTS, "--speculative_decoding_mode", "medusa")
    engine = build(checkpoint, tmp_path / "engine", *mode)
    check_engine(engine, expected(checkpoint, *mode))
    assert "build_config.max_draft_len is 63, expected 5" in problems(
        engine, expected(checkpoint, *mode, "--max_draft_len", "5")
    )
