# SPDX-License-Identifier: Apache-2.0
"""The double of trtllm-build accepts our conversions and rejects what upstream rejects."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests._support.tiny import FAMILY_SHAPES, convert, make_model
from tests.backends.contexts import make_context
from tests.doubles.builder import main, parse
from tests.doubles.checkpoints import activations_of, change_config, change_tensors, convert_fp8
from tests.doubles.fixtures import DOUBLES
from tests.methods import eagle_heads, heads, recurrent
from trtspec.backends.common.trtllm_versions import find_version_spec, version_specs
from trtspec.backends.tensorrt_llm.engine_dir import parse_arguments
from trtspec.backends.tensorrt_llm.specs import build_arguments
from trtspec.checkpoints.quant_scheme import Scheme
from trtspec.checkpoints.sharding import ParallelMapping

MAPPINGS = {
    "one": ParallelMapping(),
    "tp2": ParallelMapping(2),
    "tp4": ParallelMapping(4),  # more ranks than the two key heads
    "pp2": ParallelMapping(1, 2),
    "tp2-pp2": ParallelMapping(2, 2),
    "whole-embedding": ParallelMapping(2, embedding=False),
}
DRAFTED = "draft_target"
WITH_BUILDER = [minor for minor, contract in version_specs().items() if contract.options]


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return the tiny model of a family; three layers do not divide evenly into two stages."""
    root = tmp_path_factory.mktemp("sources")

    def source(family: str) -> Path:
        if not (root / family).exists():
            make_model(root / family, family, dtype="float16", num_hidden_layers=3)
        return root / family

    return source


@pytest.fixture(scope="module")
def llama_master(sources: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return convert(sources("llama"), tmp_path_factory.mktemp("llama"))


@pytest.fixture
def llama(llama_master: Path, tmp_path: Path) -> Path:
    """A converted Llama that the test may change."""
    return Path(shutil.copytree(llama_master, tmp_path / "llama"))


@pytest.fixture
def build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """Run the double in this process; return the config.json that it wrote."""
    monkeypatch.chdir(tmp_path)

    def build(checkpoint: Path, *arguments: str) -> dict[str, Any]:
        main(["--checkpoint_dir", str(checkpoint), "--output_dir", "engine", "--max_batch_size", "4", *arguments])
        config = json.loads(Path("engine/config.json").read_text())
        ranks = sorted(path.name for path in Path("engine").glob("rank*"))
        assert ranks == [f"rank{rank}.engine" for rank in range(config["pretrained_config"]["mapping"]["world_size"])]
        return config

    return build


Run = Callable[..., dict[str, Any]]


@pytest.mark.slow
@pytest.mark.parametrize("mapping", MAPPINGS.values(), ids=MAPPINGS)
@pytest.mark.parametrize("family", FAMILY_SHAPES)
def test_builder_accepts_every_family_and_mapping_except_pipelined_phi3_and_olmo2(
    family: str, mapping: ParallelMapping, sources: Callable[[str], Path], build: Run, tmp_path: Path, capfd: Any
) -> None:
    checkpoint = convert(sources(family), tmp_path / "checkpoint", mapping=mapping)
    if family == "olmo2":  # `check` says so before: backends/tensorrt_llm/rules/hardware.py
        with pytest.raises(KeyError, match="Olmo2ForCausalLM"):
            build(checkpoint)
        return
    if family == "phi3" and mapping.pipeline > 1:
        with pytest.raises(RuntimeError, match="Required but not provided tensors"):
            build(checkpoint)
        return
    config = build(checkpoint)
    assert config["pretrained_config"]["mapping"]["tp_size"] == mapping.tensor
    assert "not required tensors" not in capfd.readouterr().out


@pytest.mark.parametrize("mapping", [ParallelMapping(), ParallelMapping(2)], ids=["one", "tp2"])
@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
def test_builder_accepts_fp8_checkpoints(
    family: str, mapping: ParallelMapping, sources: Callable[[str], Path], build: Run, tmp_path: Path
) -> None:
    fp8 = build(convert_fp8(sources(family), tmp_path / "fp8", layers=3, mapping=mapping))
    assert fp8["build_config"]["plugin_config"]["use_fp8_context_fmha"] is True
    rowwise = convert(sources(family), tmp_path / "rowwise", mapping=mapping, scheme=Scheme("fp8_rowwise"))
    assert build(rowwise)["pretrained_config"]["quantization"]["quant_algo"] == "FP8_PER_CHANNEL_PER_TOKEN"


@pytest.mark.parametrize("mapping", [ParallelMapping(), ParallelMapping(2)], ids=["one", "tp2"])
def test_builder_accepts_medusa_redrafter_and_eagle_checkpoints(
    mapping: ParallelMapping, sources: Callable[[str], Path], build: Run, tmp_path: Path, capfd: Any
) -> None:
    medusa = heads.save_heads(tmp_path / "medusa", heads.random_heads())
    net = eagle_heads.save_head(tmp_path / "net", eagle_heads.random_head())
    recurrent_head = recurrent.random_drafter().save(tmp_path / "recurrent")
    for family in ("llama", "qwen2"):
        checkpoint = heads.convert_with(sources(family), medusa, tmp_path / f"medusa-{family}", mapping=mapping)
        assert build(checkpoint, "--speculative_decoding_mode", "medusa")["build_config"]["max_draft_len"] == 63
        checkpoint = recurrent.convert_with(
            sources(family), recurrent_head, tmp_path / f"recurrent-{family}", mapping=mapping
        )
        engine = build(checkpoint, "--speculative_decoding_mode", "explicit_draft_tokens")["build_config"]
        assert (engine["speculative_decoding_mode"], engine["max_draft_len"]) == (16, 15)
    checkpoint = eagle_heads.convert_with(sources("llama"), net, tmp_path / "eagle", {}, mapping=mapping)
    engine = build(checkpoint, "--speculative_decoding_mode", "eagle", "--max_seq_len", "100")["build_config"]
    assert (engine["max_draft_len"], engine["max_seq_len"]) == (25, 100 + 25 + 5)  # mc_sim_7b_63 as in EAGLE
    assert "not required tensors" not in capfd.readouterr().out


def test_builder_adjusts_length_limits_for_external_drafts_as_upstream(llama: Path, build: Run, capfd: Any) -> None:
    arguments = ("--max_seq_len", "100", "--max_num_tokens", "32")
    mode = ("--speculative_decoding_mode", "draft_tokens_external", "--max_draft_len", "9")
    engine = build(llama, *arguments, *mode)["build_config"]
    assert (engine["max_seq_len"], engine["max_num_tokens"], engine["speculative_decoding_mode"]) == (109, 40, 2)
    assert "Increasing max_seq_len (100) by max_draft_len (9)" in capfd.readouterr().out
    engine = build(llama, "--max_seq_len", "100")["build_config"]
    assert (engine["max_seq_len"], engine["max_num_tokens"], engine["speculative_decoding_mode"]) == (100, 400, 1)


REFUSED_OPTIONS = {
    "unknown": (["--paged_contexts", "enable"], "unrecognized arguments: --paged_contexts enable"),
    "abbreviated": (["--max_batch", "4"], "unrecognized arguments: --max_batch 4"),
    "mode": (["--speculative_decoding_mode", "ngram"], "invalid choice: 'ngram'"),
    "switch": (["--context_fmha", "true"], "invalid choice: 'true'"),
    "number": (["--max_draft_len", "many"], "invalid int value: 'many'"),
    "flag": (["--gather_generation_logits", "enable"], "unrecognized arguments: enable"),
    "kv_cache": (["--kv_cache_type", "huge"], "invalid choice: 'huge'"),
}


@pytest.mark.parametrize(("arguments", "words"), REFUSED_OPTIONS.values(), ids=REFUSED_OPTIONS)
def test_builder_rejects_invalid_options(arguments: list[str], words: str, llama: Path, build: Run, capfd: Any) -> None:
    with pytest.raises(SystemExit):
        build(llama, *arguments)
    assert words in capfd.readouterr().err


@pytest.mark.parametrize("minor", WITH_BUILDER)
def test_builder_accepts_only_the_options_of_its_version(
    minor: str, llama: Path, build: Run, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    contract = version_specs()[minor]
    monkeypatch.setenv("TRTLLM_DOUBLE_VERSION", contract.releases[-1].version)
    arguments = ("--auto_parallel", "1")
    if "auto_parallel" in contract.options:
        assert build(llama, *arguments)["version"] == contract.releases[-1].version
    else:
        with pytest.raises(SystemExit):
            build(llama, *arguments)
        assert "unrecognized arguments: --auto_parallel 1" in capfd.readouterr().err


EXTERNAL = ["--speculative_decoding_mode", "draft_tokens_external"]
REFUSED_BUILDS = {
    "context logits": (["--gather_context_logits", "--max_draft_len", "4"], 90, "Gather context logits is not support"),
    "all logits": (["--gather_all_token_logits", "--max_draft_len", "4"], 90, "Gather context logits is not support"),
    "profiles": (["--multiple_profiles", "enable", "--opt_num_tokens", "8"], 90, "multiple_profiles is enabled, while"),
    "streaming": (["--streamingllm", "enable"], 90, "StreamingLLM is no longer supported"),
    "reduce scatter": (["--pp_reduce_scatter", "enable"], 90, "PP reduce scatter is only supported in the mixtral"),
    "swiglu": (["--gemm_swiglu_plugin", "fp8", "--use_fused_mlp", "disable"], 90, "requires --use_fused_mlp flag"),
    "blackwell": (["--low_latency_gemm_plugin", "fp8"], 100, "low_latency_gemm_plugin=fp8 is not supported on SM 100"),
    "no drafts": (EXTERNAL, 90, "has to be larger than 0 for decoding with external draft tokens"),
    "no guesses": (["--speculative_decoding_mode", "lookahead_decoding"], 90, "larger than 0 for Lookahead decoding"),
    "no heads": (["--speculative_decoding_mode", "medusa", "--max_draft_len", "4"], 90, "Both num_medusa_heads and"),
    "no nets": (
        ["--speculative_decoding_mode", "eagle", "--max_draft_len", "4"],
        90,
        "^$",
    ),  # upstream asserts without a message
}


@pytest.mark.parametrize(("arguments", "sm", "words"), REFUSED_BUILDS.values(), ids=REFUSED_BUILDS)
def test_builder_rejects_unsupported_builds(
    arguments: list[str], sm: int, words: str, llama: Path, build: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRTLLM_DOUBLE_SM", str(sm))
    with pytest.raises((RuntimeError, AssertionError, NotImplementedError), match=words):
        build(llama, *arguments)


def test_builder_rejects_rowwise_fp8_on_blackwell(
    sources: Callable[[str], Path], build: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = convert(sources("llama"), tmp_path / "rowwise", scheme=Scheme("fp8_rowwise"))
    monkeypatch.setenv("TRTLLM_DOUBLE_SM", "100")
    with pytest.raises(RuntimeError, match="Per-channel or per-token scaling is not supported on SM>=100"):
        build(checkpoint)


def test_builder_enforces_eagle_limits_and_paged_context_fmha(
    sources: Callable[[str], Path], build: Run, tmp_path: Path
) -> None:
    net = eagle_heads.save_head(tmp_path / "net", eagle_heads.random_head())
    checkpoint = eagle_heads.convert_with(sources("llama"), net, tmp_path / "eagle", {})
    mode = ("--speculative_decoding_mode", "eagle")
    with pytest.raises(AssertionError, match="Max batch size > 512 is not supported for EAGLE"):
        build(checkpoint, *mode, "--max_batch_size", "513")
    with pytest.raises(AssertionError, match="Max draft len > 256 is not supported for EAGLE"):
        build(checkpoint, *mode, "--max_draft_len", "257")
    assert build(checkpoint, *mode, "--use_paged_context_fmha", "disable")["build_config"]["plugin_config"][
        "use_paged_context_fmha"
    ], "upstream turns it on again"


CONTEXT_FMHA = {
    # (weights, KV cache, SM, requested: paged and FP8) -> features of the engine
    "plain": (("none", "none", 90, "enable", "enable"), (True, False)),
    "fp8": (("fp8", "fp8", 90, "enable", "disable"), (True, True)),
    "fp8 weights alone": (("fp8", "none", 90, "enable", "enable"), (True, False)),
    "fp8 before ada": (("fp8", "fp8", 86, "enable", "enable"), (False, False)),
    "fp8 cache alone": (("none", "fp8", 90, "enable", "enable"), (False, False)),
}


@pytest.mark.parametrize(("asked", "made"), CONTEXT_FMHA.values(), ids=CONTEXT_FMHA)
def test_builder_resolves_context_fmha_options_as_upstream(
    asked: tuple[Any, ...],
    made: tuple[bool, bool],
    sources: Callable[[str], Path],
    build: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    weights, cache, sm, paged, fp8 = asked
    scheme = Scheme(weights, cache)
    checkpoint = convert(sources("llama"), tmp_path / "checkpoint", scheme=scheme, activations=activations_of(3))
    monkeypatch.setenv("TRTLLM_DOUBLE_SM", str(sm))
    engine = build(checkpoint, "--use_paged_context_fmha", paged, "--use_fp8_context_fmha", fp8)
    plugins = engine["build_config"]["plugin_config"]
    assert (plugins["use_paged_context_fmha"], plugins["use_fp8_context_fmha"]) == made


QKV = "transformer.layers.0.attention.qkv.weight"
REFUSED_TENSORS: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "missing": (lambda tensors: tensors.pop(QKV), f"Required but not provided tensors:{{'{QKV}'}}"),
    "shape": (
        lambda tensors: tensors.update({QKV: tensors[QKV][:-1].copy()}),
        rf"Updated: \(63, 32\), original: \(64, 32\)' for parameter '{QKV}'",
    ),
    "dtype": (
        lambda tensors: tensors.update({QKV: tensors[QKV].astype("float32")}),
        f"Parameter {QKV} was initialized as F16 but set to F32",
    ),
}


@pytest.mark.parametrize(("change", "words"), REFUSED_TENSORS.values(), ids=REFUSED_TENSORS)
def test_builder_rejects_invalid_tensors(
    change: Callable[[dict[str, Any]], object], words: str, llama: Path, build: Run
) -> None:
    with pytest.raises(RuntimeError, match=words):
        build(change_tensors(llama, change))


def test_builder_accepts_a_missing_lm_head_with_an_embedding(llama: Path, build: Run) -> None:
    build(change_tensors(llama, lambda tensors: tensors.pop("lm_head.weight")))


def test_builder_reports_unneeded_tensors(llama: Path, build: Run, capfd: Any) -> None:
    build(change_tensors(llama, lambda tensors: tensors.update(more=tensors["transformer.ln_f.weight"])))
    assert "Provided but not required tensors: {'more'}" in capfd.readouterr().out


REFUSED_MODELS: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "architecture": ({"architecture": "GemmaForCausalLM"}, KeyError, "GemmaForCausalLM"),
    "world": (
        {"mapping": {"world_size": 2, "tp_size": 1, "pp_size": 1, "cp_size": 1}},
        ValueError,
        r"but got 2 != 1 \* 1 \* 1",
    ),
    "heads": (
        {"mapping": {"world_size": 3, "tp_size": 3, "pp_size": 1, "cp_size": 1}},
        AssertionError,
        "num_attention_heads must be divisible by tp_size",
    ),
}


@pytest.mark.parametrize(("change", "error", "words"), REFUSED_MODELS.values(), ids=REFUSED_MODELS)
def test_builder_rejects_invalid_model_configs(
    change: dict[str, Any], error: type[Exception], words: str, llama: Path, build: Run
) -> None:
    change_config(llama, lambda config: config.update(change))
    with pytest.raises(error, match=words):
        build(llama)


def test_builder_rejects_a_rank_without_a_file(llama: Path, build: Run) -> None:
    two_stages = {"world_size": 2, "tp_size": 1, "pp_size": 2, "cp_size": 1}
    change_config(llama, lambda config: config.update(mapping=two_stages, num_hidden_layers=6))
    with pytest.raises(AssertionError):
        build(llama)
    assert Path("engine/rank0.engine").exists()


@pytest.mark.parametrize("kind", ["medusa", "recurrent"])
def test_builder_requires_draft_heads_on_every_pipeline_stage(
    kind: str, sources: Callable[[str], Path], build: Run, tmp_path: Path
) -> None:
    """Upstream creates the heads regardless of the stage, so these methods do not support pipelines."""
    if kind == "medusa":
        part = heads.save_heads(tmp_path / "part", heads.random_heads())
        checkpoint = heads.convert_with(sources("llama"), part, tmp_path / "checkpoint", mapping=ParallelMapping(1, 2))
    else:
        part = recurrent.random_drafter().save(tmp_path / "part")
        checkpoint = recurrent.convert_with(
            sources("llama"), part, tmp_path / "checkpoint", mapping=ParallelMapping(1, 2)
        )
    with pytest.raises(RuntimeError, match="Required but not provided tensors"):
        build(checkpoint)


@pytest.mark.slow
def test_builder_runs_as_a_program(llama: Path, tmp_path: Path) -> None:
    command = [DOUBLES / "trtllm-build", "--checkpoint_dir", llama, "--output_dir", "engine", "--max_beam_width", "1"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout.startswith("[TensorRT-LLM] TensorRT LLM version: 1.2.1\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["engine", "llama", "model.cache"]
    refused = subprocess.run([*command, "--max_draft_len", "1", "--gather_context_logits"], cwd=tmp_path,
                             capture_output=True, text=True, check=False, timeout=300)  # fmt: skip
    assert refused.returncode == 1
    assert "RuntimeError: Gather context logits is not support with draft len > 0" in refused.stderr


@pytest.mark.parametrize("version", ["1.0.0", "1.1.0", "1.2.1"])
@pytest.mark.parametrize("method", ["none", "draft_target", "ngram", "medusa", "eagle", "lookahead", "redrafter"])
def test_builder_accepts_the_arguments_of_every_method(method: str, version: str) -> None:
    case = make_context(
        version=version, speculation__method=method, draft="llama-3.2-1b" if method == DRAFTED else None
    )
    for role in ("target", "draft") if method == DRAFTED else ("target",):
        argv = build_arguments(role, case)
        assert vars(parse(find_version_spec(version), argv))["max_batch_size"] == 4
        assert parse_arguments(argv)["kv_cache_type"] == "paged"
