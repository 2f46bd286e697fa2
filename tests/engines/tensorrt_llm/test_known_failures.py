# SPDX-License-Identifier: Apache-2.0
"""What people ran into upstream, each as the recipe that would run into it again and what is said instead.

A row's issue is TensorRT-LLM's own, BE# is the Triton backend's; without one it is the line of the sources that
refuses, warns or changes something in silence.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from tests.engines.tensorrt_llm.cases import make_case, make_pair, shape
from trtspec.engines.base import Case
from trtspec.engines.tensorrt_llm.rules import RULES, Rule, objections


class Row(NamedTuple):
    """A failure upstream, the recipe that has it, and the objection that meets it: its path and its words."""

    upstream: str
    case: Case
    path: str
    message: str
    severity: str = "error"


def extra(case: Any = make_case, **options: Any) -> Case:
    made: Case = case(engine__extra=options)
    return made


def fp8(weights: str = "none", kv_cache: str = "none", **changes: Any) -> dict[str, Any]:
    return {"target__quantization": {"weights": weights, "kv_cache": kv_cache}, **changes}


LOOKAHEAD = {"speculation__method": "lookahead"}
EAGLE = {"speculation__method": "eagle", "target": "vicuna-7b"}
MEDUSA = {"speculation__method": "medusa", "target": "vicuna-7b"}

KNOWN_FAILURES = [
    Row(
        "BE#473 draft tokens (56) > max (0)",
        extra(make_pair, max_draft_len=0),
        "engine.extra.max_draft_len",
        "max_draft_len is decided by speculation, which knows how many tokens are drafted",
    ),
    Row(
        "#2641 lookahead fails to build with fp8_rowwise",
        make_case(**LOOKAHEAD, **fp8("fp8_rowwise")),
        "target.quantization.weights",
        "lookahead engines cannot be built of fp8_rowwise weights",
    ),
    Row(
        "BE#710 assertion in the lookahead layer",
        make_case(**LOOKAHEAD, speculation__options={"window": 1, "verification": 0, "ngram": 1}),
        "speculation.options",
        "window, ngram and verification (1, 1, 0) draft nothing, and a lookahead engine needs room for drafts",
    ),
    Row(
        "lookahead README: (2, 2, 1) is the least that means something",
        make_case(**LOOKAHEAD, speculation__options={"window": 1, "verification": 1, "ngram": 3}),
        "speculation.options",
        "window, ngram and verification (1, 3, 1) are below (2, 2, 1), from which lookahead means something",
        "warning",
    ),
    Row(
        "#2125 FP8 attention without an FP8 KV cache",
        make_case(engine__extra={"use_fp8_context_fmha": "enable"}, **fp8("fp8")),
        "engine.extra.use_fp8_context_fmha",
        "use_fp8_context_fmha needs weights and KV cache in FP8, and the target's are not both",
    ),
    Row(
        "builder: FP8 attention is turned on again for an FP8 KV cache",
        make_case(engine__extra={"use_fp8_context_fmha": "disable"}, **fp8("fp8", "fp8")),
        "engine.extra.use_fp8_context_fmha",
        "the target's KV cache in FP8 turns use_fp8_context_fmha on again",
    ),
    Row(
        "runtime: KV cache block reuse must be enabled for the target (FP8 cache alone)",
        make_pair(**fp8("none", "fp8")),
        "target.quantization.kv_cache",
        "an FP8 KV cache with 16-bit weights turns paged context attention off, and with it KV cache reuse and chunked"
        " prompts; draft_target needs reuse",
    ),
    Row(
        "runtime: the same of a draft with weights scaled by row",
        make_pair(speculation__draft__quantization={"weights": "fp8_rowwise", "kv_cache": "fp8"}),
        "speculation.draft.quantization.kv_cache",
        "an FP8 KV cache with fp8_rowwise weights turns paged context attention off, and with it KV cache reuse and"
        " chunked prompts; draft_target needs reuse",
    ),
    Row(
        "builder: paged context attention is turned off in silence",
        make_case(**fp8("none", "fp8")),
        "target.quantization.kv_cache",
        "an FP8 KV cache with 16-bit weights turns paged context attention off, and with it KV cache reuse and chunked"
        " prompts",
        "warning",
    ),
    Row(
        "#2709 drafts from outside without paged context attention",
        extra(make_pair, use_paged_context_fmha="disable"),
        "engine.extra.use_paged_context_fmha",
        "use_paged_context_fmha turns paged context attention off, and with it KV cache reuse; draft_target needs it",
    ),
    Row(
        "builder: StreamingLLM turns paged context attention off",
        extra(make_pair, streamingllm="enable"),
        "engine.extra.streamingllm",
        "streamingllm turns paged context attention off, and with it KV cache reuse; draft_target needs it",
    ),
    Row(
        "#2511, #10396 EAGLE on Qwen",
        make_case("qwen2.5-7b", speculation__method="eagle"),
        "speculation.method",
        "EAGLE engines are built for Llama alone, not for Qwen2ForCausalLM",
    ),
    Row(
        "#3207 EAGLE with FP8",
        make_case(**EAGLE, **fp8("fp8")),
        "target.quantization.weights",
        "EAGLE engines are in float16 or bfloat16: FP8 is not supported",
    ),
    Row(
        "EAGLE README: no pipeline parallelism",
        make_case(**EAGLE, target__parallel={"pipeline": 2}),
        "target.parallel.pipeline",
        "EAGLE engines have no pipeline stages",
    ),
    Row(
        "builder: Max batch size > 512 is not supported for EAGLE",
        make_case(**EAGLE, engine__max_batch_size=513, engine__max_seq_len=64),
        "engine.max_batch_size",
        "EAGLE engines take at most 512 requests a step, not 513",
    ),
    Row(
        "EAGLE-2 is not supported via Triton",
        make_case(**EAGLE, speculation__options={"dynamic": True}),
        "speculation.options.dynamic",
        "a dynamic tree (EAGLE-2) cannot be served by Triton: its backend passes on eagle_choices alone",
    ),
    Row(
        "Triton backend: no posterior threshold",
        make_case(**EAGLE, speculation__options={"lossy": True}),
        "speculation.options.lossy",
        "typical acceptance cannot be asked of a served engine: the Triton backend has no parameter for it",
    ),
    Row(
        "Medusa README: temperature 0 alone",
        make_case(**MEDUSA),
        "speculation.method",
        "Medusa engines are for greedy decoding: upstream supports temperature 0 alone",
        "warning",
    ),
    Row(
        "#2678 Medusa's config for another base",
        make_case(shape("qwen2.5-7b", architecture="Qwen3ForCausalLM"), speculation__method="medusa"),
        "speculation.method",
        "upstream shows medusa for LlamaForCausalLM, MixtralForCausalLM, Qwen2ForCausalLM, not for Qwen3ForCausalLM",
        "warning",
    ),
    Row(
        "Medusa README: tensor parallelism alone",
        make_case(**MEDUSA, target__parallel={"pipeline": 2}),
        "target.parallel.pipeline",
        "upstream lists tensor parallelism alone for medusa",
        "warning",
    ),
    Row(
        "ReDrafter README: greedy engines ignore the temperature",
        make_case("vicuna-7b", speculation__method="redrafter"),
        "speculation.options",
        "ReDrafter engines with greedy: true ignore a request's temperature",
        "warning",
    ),
    Row(
        "trtllm-build: Gather context logits is not supported with draft len > 0",
        extra(make_pair, gather_context_logits=True),
        "engine.extra.gather_context_logits",
        "gather_context_logits turns KV cache reuse off; trtllm-build refuses it beside drafts",
    ),
    Row(
        "drafts are verified for one beam",
        extra(make_pair, max_beam_width=4),
        "engine.extra.max_beam_width",
        "max_beam_width: one beam is served, and drafts are verified for one",
    ),
    Row(
        "#2789 vocabularies of draft and target do not match",
        make_pair(
            target=shape("llama-3.1-8b", vocab_size=32003),
            draft=shape("llama-3.2-1b", vocab_size=32003),
            target__parallel={"tensor": 2},
        ),
        "speculation.options.use_draft_logits",
        "the target's logits are 32004 wide, the draft's 32003, padded for their ranks",
    ),
    Row(
        "pull 8329: automatic parallelism is gone",
        extra(auto_parallel=2),
        "engine.extra.auto_parallel",
        "trtllm-build 1.2.1 has no option auto_parallel",
    ),
    Row(
        "pull 1954: max_output_len is gone",
        extra(max_output_len=100),
        "engine.extra.max_output_len",
        "trtllm-build 1.2.1 has no option max_output_len",
    ),
    Row(
        "trtllm-build: invalid choice",
        extra(gemm_plugin="fp16"),
        "engine.extra.gemm_plugin",
        "gemm_plugin is one of auto, float16, float32, bfloat16, int32, fp8, nvfp4, disable, not 'fp16'",
    ),
    Row(
        "trtllm-build: multiple_profiles is enabled, while opt_num_tokens is set",
        extra(multiple_profiles="enable", opt_num_tokens=64),
        "engine.extra.opt_num_tokens",
        "multiple_profiles and opt_num_tokens exclude each other",
    ),
    Row(
        "runtime: requires GPT attention plugin with packed input and paged KV cache",
        extra(remove_input_padding="disable"),
        "engine.extra.remove_input_padding",
        "remove_input_padding cannot be disabled: without it requests are not batched in flight",
    ),
    Row(
        "#796 networks with FP8 precision require hardware with FP8 support",
        make_case(engine__gpu="a100-80gb", **fp8("fp8")),
        "target.quantization.weights",
        "FP8 needs compute capability 8.9 (Ada, Hopper), which a100-80gb (compute capability 8.0) is below",
    ),
    Row(
        "builder: Per-channel or per-token scaling is not supported on SM>=100",
        make_case(engine__gpu="b200", **fp8("fp8_rowwise")),
        "target.quantization.weights",
        "fp8_rowwise engines cannot be built for b200 (compute capability 10.0): the builder refuses scales by row"
        " there",
    ),
    Row(
        "plugins: gemm_swiglu_plugin=fp8 is not supported on SM 100",
        make_case(engine__gpu="b200", engine__extra={"gemm_swiglu_plugin": "fp8"}, **fp8("fp8")),
        "engine.extra.gemm_swiglu_plugin",
        "gemm_swiglu_plugin has no kernels for b200 (compute capability 10.0)",
    ),
    Row(
        "plugins: FP8 matrices without FP8 weights",
        extra(low_latency_gemm_plugin="fp8"),
        "engine.extra.low_latency_gemm_plugin",
        "low_latency_gemm_plugin needs fp8 weights, and the target's are none",
    ),
    Row(
        "builder: GemmSwiGLU plugin requires --use_fused_mlp flag",
        make_case(engine__extra={"gemm_swiglu_plugin": "fp8", "use_fused_mlp": "disable"}, **fp8("fp8")),
        "engine.extra.gemm_swiglu_plugin",
        "gemm_swiglu_plugin needs use_fused_mlp",
    ),
    Row(
        "builder: Overriding user_buffer to False",
        extra(user_buffer="enable"),
        "engine.extra.user_buffer",
        "user_buffer is turned off by the builder: it needs reduce_fusion",
        "warning",
    ),
    Row(
        "trtllm-build: PP reduce scatter is only supported in the mixtral model",
        extra(pp_reduce_scatter="enable"),
        "engine.extra.pp_reduce_scatter",
        "pp_reduce_scatter is for Mixtral",
    ),
    Row(
        "trtllm-build: a max_num_tokens larger than 16384 is usually not recommended",
        make_case(engine__max_num_tokens=32768, engine__max_batch_size=16, engine__gpu="h200"),
        "engine.max_num_tokens",
        "32768 tokens a step; upstream advises against more than 16384",
        "warning",
    ),
    Row(
        "builder: Overriding reduce_fusion to False",
        extra(reduce_fusion="enable"),
        "engine.extra.reduce_fusion",
        "reduce_fusion is turned off by the builder: it is for Llama models divided over several GPUs",
        "warning",
    ),
    Row(
        "builder: max_num_tokens is raised in silence",
        make_case(**MEDUSA, engine__max_num_tokens=128),
        "engine.max_num_tokens",
        "max_num_tokens 128 is less than max_batch_size 4 times 64 tokens to verify; trtllm-build would raise it",
    ),
    Row(
        "runtime: Prompt length exceeds maximum input length",
        make_case(**MEDUSA, engine__max_num_tokens=512),
        "engine.max_num_tokens",
        "prompts of the target are not taken in chunks, so that 512 tokens a step refuse those of max_input_len 1024",
    ),
    Row(
        "runtime: draft tokens that do not fit the last chunk are discarded",
        make_pair(engine__max_num_tokens=1024),
        "engine.max_num_tokens",
        "texts are longer than a step of 1024 tokens and taken in chunks: the scheduler then drops drafts that reach"
        " into another block of the KV cache",
        "warning",
    ),
    Row(
        "#1221, #2451 out of memory",
        make_case("llama-3.3-70b"),
        "engine.gpu",
        "GPU 0: weights and activations take about 133.3 GiB, and the GPU has 79.0 GiB",
    ),
    Row(
        "runtime: maxSequenceLen is reduced to maxAttentionWindow",
        make_case(engine__gpu="l4", engine__max_seq_len=131072),
        "engine.max_seq_len",
        "GPU 0: about 5.5 GiB are left for KV caches, 44960 tokens; one text may have 131072, its drafts counted",
    ),
    Row(
        "runtime: requests wait for KV cache blocks",
        make_case(engine__gpu="l4", engine__max_batch_size=64),
        "engine.max_batch_size",
        "GPU 0: KV caches have room for 21 of max_batch_size 64 texts of max_seq_len at once; the others wait",
        "warning",
    ),
    Row(
        "runtime: deviceIds * numNodes must be equal to tp*pp*cp",
        make_case(target__parallel={"tensor": 2}, serving__placement={"target": [0]}),
        "serving.placement.target",
        "the target is divided over 2 GPUs, and 1 are named",
    ),
    Row(
        "a draft is placed that there is not",
        make_case(speculation__method="ngram", serving__placement={"target": [0], "draft": [1]}),
        "serving.placement.draft",
        "ngram has no draft model to place",
    ),
    Row(
        "runtime: device ids are those of one node",
        make_case(serving__placement={"target": [8]}),
        "serving.placement.target",
        "GPU 8: a node's GPUs are numbered 0 to 7",
    ),
    Row(
        "orchestrated workers run on a single node",
        make_case(target__parallel={"tensor": 8, "pipeline": 2}),
        "target.parallel",
        "the target has 16 ranks; engines are served on one node of 8",
    ),
    Row(
        "Triton backend: fast logits are disabled with a warning",
        make_pair(serving__fast_logits=True, speculation__options={"use_draft_logits": False}),
        "serving.fast_logits",
        "fast_logits without use_draft_logits: no logits are handed on",
    ),
    Row(
        "fast logits without a draft model",
        make_case(speculation__method="ngram", serving__fast_logits=True),
        "serving.fast_logits",
        "fast_logits hands a draft model's logits on, and ngram has none",
    ),
    Row(
        "#3031 an engine for another GPU (compute 9.0 and 8.9)",
        make_case(engine__gpu=None),
        "engine",
        "engines are built for one kind of GPU, and the recipe names none",
    ),
    Row(
        "support matrix: Ampere and later",
        make_case(engine__gpu="v100"),
        "engine.gpu",
        "TensorRT-LLM 1.2.1 runs on Ampere and later, not on v100 (compute capability 7.0)",
    ),
    Row(
        "Unsupported model architecture",
        make_case(shape("llama-3.1-8b", architecture="OlmoForCausalLM")),
        "target.model",
        "TensorRT-LLM 1.2.1 builds no engines of OlmoForCausalLM",
    ),
]


@pytest.mark.parametrize("row", KNOWN_FAILURES, ids=lambda row: row.upstream)
def test_a_known_failure_is_met(row: Row) -> None:
    found = [(each.path, each.message, each.severity) for each in objections(row.case)]
    assert (row.path, row.message, row.severity) in found


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_every_rule_meets_one(rule: Rule) -> None:
    words = {(row.path, row.message) for row in KNOWN_FAILURES}
    assert any((each.path, each.message) in words for row in KNOWN_FAILURES for each in rule(row.case))


@pytest.mark.parametrize("row", KNOWN_FAILURES, ids=lambda row: row.upstream)
def test_every_objection_has_a_source(row: Row) -> None:
    for objection in objections(row.case):
        assert "NVIDIA/TensorRT-LLM" in objection.source


GOOD = {
    "plain": make_case(),
    "pair": make_pair(),
    "pair in FP8": make_pair(**fp8("fp8", "fp8")),
    "pair on two GPUs": make_pair(serving__placement={"target": [1], "draft": [0]}, serving__fast_logits=True),
    "ngram": make_case(speculation__method="ngram"),
    "lookahead": make_case(**LOOKAHEAD, speculation__options={"window": 7, "verification": 7, "ngram": 7}),
    "eagle": make_case(**EAGLE),
    "not greedy": make_case("vicuna-7b", speculation__method="redrafter", speculation__options={"greedy": False}),
    "70B on two GPUs": make_case("llama-3.3-70b", target__parallel={"tensor": 2}, **fp8("fp8", "fp8")),
    "options": extra(gemm_plugin="bfloat16", multiple_profiles=True, max_lora_rank=8, fast_build=True),
    "blackwell": make_case(engine__gpu="b200", **fp8("fp8", "fp8")),
}


@pytest.mark.parametrize("name", GOOD)
def test_nothing_is_said_of_what_works(name: str) -> None:
    assert list(objections(GOOD[name])) == []


def test_a_version_that_has_the_option() -> None:
    removed = next(each for each in objections(extra(auto_parallel=2)) if each.code == "unknown-key")
    assert removed.hint == "1.0 and 1.1 have it"
    known = [each.code for each in objections(replace(extra(auto_parallel=2), version="1.0.0"))]
    assert known == ["not-allowed"]


def test_a_near_spelling() -> None:
    (objection,) = objections(extra(gemm_plugn="auto"))
    assert objection.hint == "did you mean 'gemm_plugin'?"


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("tokens_per_block", "many", "tokens_per_block is a whole number of at least 0, not 'many'"),
        ("tokens_per_block", -1, "tokens_per_block is a whole number of at least 0, not -1"),
        ("fast_build", "yes", "fast_build is true or false, not 'yes'"),
        ("multiple_profiles", "on", "multiple_profiles is one of enable, disable, not 'on'"),
        ("gemm_plugin", False, "gemm_plugin is one of auto, float16, float32, bfloat16, int32, fp8, nvfp4, disable,"),
    ],
)
def test_values_of_another_type(option: str, value: Any, message: str) -> None:
    assert any(each.message.startswith(message) for each in objections(extra(**{option: value})))


def test_a_gpu_that_nobody_knows() -> None:
    (objection,) = objections(make_case(engine__gpu="h1000"))
    assert (objection.path, objection.message) == ("engine.gpu", "nothing is known of the GPU 'h1000'")


@pytest.mark.parametrize("option", ["checkpoint_dir", "build_config", "visualize_network", "lora_dir"])
def test_paths_are_the_builds_own(option: str) -> None:
    (objection,) = objections(extra(**{option: "/somewhere"}))
    assert objection.message == f"{option} is a path: a build sees its checkpoint and nothing else"
