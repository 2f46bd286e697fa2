# SPDX-License-Identifier: Apache-2.0
"""Known upstream failures: for each a recipe that reproduces it, and the diagnostic that prevents it.

# marks issues of TensorRT-LLM, BE# issues of triton-inference-server/tensorrtllm_backend. Rows without a number refer
to the source line that rejects, warns or silently changes something.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from tests.backends.contexts import LONGROPE, Asked, ask, ask_pair, shape

SERVED = (
    "Gemma2ForCausalLM, Gemma3ForCausalLM, GraniteForCausalLM, LlamaForCausalLM, MistralForCausalLM,"
    " MixtralForCausalLM, Olmo2ForCausalLM, Phi3ForCausalLM,"
    " Qwen2ForCausalLM, Qwen3ForCausalLM"
)


class Row(NamedTuple):
    """An upstream failure, its recipe, and the expected diagnostic: path, words and severity.

    `before` is `check`'s own diagnostic of the same path, if it does not reach the engine's rules.
    """

    upstream: str
    asked: Asked
    path: str
    message: str
    severity: str = "error"
    before: str = ""


def extra(ask_for: Callable[..., Asked] = ask, **options: Any) -> Asked:
    """Return a recipe with options of trtllm-build."""
    return ask_for(engine__extra=options)


def fp8(weights: str = "none", kv_cache: str = "none", **more: Any) -> dict[str, Any]:
    """Return the keys that store the target in FP8."""
    return {"target__quantization": {"weights": weights, "kv_cache": kv_cache, **more}}


LOOKAHEAD = {"speculation__method": "lookahead"}
EAGLE = {"speculation__method": "eagle", "target": "vicuna-7b"}
MEDUSA = {"speculation__method": "medusa", "target": "vicuna-7b"}
REDRAFTER = {"speculation__method": "redrafter", "target": "vicuna-7b"}

KNOWN_FAILURES = [
    Row(
        "a length that was built in cannot be scheduled",
        ask(
            target="vicuna-7b",
            speculation__method="redrafter",
            speculation__schedule=[{"max_batch": 4, "draft_len": 5}],
        ),
        "speculation.schedule",
        "the draft length of a redrafter engine is fixed when it is built",
    ),
    Row(
        "BE#473 draft tokens (56) > max (0)",
        extra(ask_pair, max_draft_len=0),
        "engine.extra.max_draft_len",
        "max_draft_len is determined by speculation, which determines the number of draft tokens",
    ),
    Row(
        "#2641 lookahead fails to build with fp8_rowwise",
        ask(**LOOKAHEAD, **fp8("fp8_rowwise")),
        "target.quantization.weights",
        "lookahead engines do not support fp8_rowwise weights",
    ),
    Row(
        "gpt_attention: assert spec_decoding_use is not None (Medusa)",
        ask(**MEDUSA, **fp8("fp8_rowwise")),
        "target.quantization.weights",
        "medusa engines do not support fp8_rowwise weights",
    ),
    Row(
        "gpt_attention: assert spec_decoding_use is not None (ReDrafter)",
        ask(**REDRAFTER, **fp8("fp8_rowwise")),
        "target.quantization.weights",
        "redrafter engines do not support fp8_rowwise weights",
    ),
    Row(
        "Provided but not required tensors: q_layernorm, k_layernorm (Qwen3 by rows)",
        ask(shape("qwen2.5-7b", architecture="Qwen3ForCausalLM", attn_bias=False, qk_norm=True), **fp8("fp8_rowwise")),
        "target.quantization.weights",
        "fp8_rowwise engines of Qwen3ForCausalLM omit its norms of queries and keys, so their output is wrong",
    ),
    Row(
        "GPTAttentionPlugin: ATTENTION_OUTPUT_QUANTIZATION_SCALE is missing",
        ask(**fp8("fp8", "fp8", exclude=["lm_head", "transformer.layers.0.*"])),
        "target.quantization.exclude.1",
        "'transformer.layers.0.*' keeps attention.dense in 16 bits, but with an FP8 KV cache its input is FP8",
    ),
    Row(
        "BE#710 assertion in the lookahead layer",
        ask(**LOOKAHEAD, speculation__options={"window": 1, "verification": 0, "ngram": 1}),
        "speculation.options",
        "window, ngram and verification (1, 1, 0) draft nothing, but a lookahead engine needs space for drafts",
    ),
    Row(
        "lookahead README: (2, 2, 1) is the useful minimum",
        ask(**LOOKAHEAD, speculation__options={"window": 1, "verification": 1, "ngram": 3}),
        "speculation.options",
        "window, ngram and verification (1, 3, 1) are below (2, 2, 1), the minimum for useful lookahead",
        "warning",
    ),
    Row(
        "#2125 FP8 attention without an FP8 KV cache",
        ask(engine__extra={"use_fp8_context_fmha": "enable"}, **fp8("fp8")),
        "engine.extra.use_fp8_context_fmha",
        "use_fp8_context_fmha needs FP8 weights and an FP8 KV cache; the target does not have both",
    ),
    Row(
        "builder: FP8 attention is enabled again for an FP8 KV cache",
        ask(engine__extra={"use_fp8_context_fmha": "disable"}, **fp8("fp8", "fp8")),
        "engine.extra.use_fp8_context_fmha",
        "the target's FP8 KV cache enables use_fp8_context_fmha again",
    ),
    Row(
        "runtime: KV cache block reuse must be enabled for the target (FP8 cache alone)",
        ask_pair(**fp8("none", "fp8")),
        "target.quantization.kv_cache",
        "an FP8 KV cache with 16-bit weights disables paged context attention, and therefore KV cache reuse and chunked"
        " prompts; draft_target needs reuse",
    ),
    Row(
        "runtime: the same of a draft with weights scaled by row",
        ask_pair(speculation__draft__quantization={"weights": "fp8_rowwise", "kv_cache": "fp8"}),
        "speculation.draft.quantization.kv_cache",
        "an FP8 KV cache with fp8_rowwise weights disables paged context attention, and therefore KV cache reuse and"
        " chunked prompts; draft_target needs reuse",
    ),
    Row(
        "builder: paged context attention is disabled silently",
        ask(**fp8("none", "fp8")),
        "target.quantization.kv_cache",
        "an FP8 KV cache with 16-bit weights disables paged context attention, and therefore KV cache reuse and chunked"
        " prompts",
        "warning",
    ),
    Row(
        "#2709 drafts from outside without paged context attention",
        extra(ask_pair, use_paged_context_fmha="disable"),
        "engine.extra.use_paged_context_fmha",
        "use_paged_context_fmha disables paged context attention, and therefore KV cache reuse; draft_target needs it",
    ),
    Row(
        "builder: StreamingLLM disables paged context attention",
        extra(ask_pair, streamingllm="enable"),
        "engine.extra.streamingllm",
        "streamingllm disables paged context attention, and therefore KV cache reuse; draft_target needs it",
    ),
    Row(
        "#2511, #10396 EAGLE on Qwen",
        ask("qwen2.5-7b", speculation__method="eagle"),
        "speculation.method",
        "EAGLE engines support Llama only, not Qwen2ForCausalLM",
    ),
    Row(
        "#3207 EAGLE with FP8",
        ask(**EAGLE, **fp8("fp8")),
        "target.quantization.weights",
        "EAGLE engines require float16 or bfloat16: FP8 is not supported",
    ),
    Row(
        "models/eagle: kv_cache_quantize() gives each attention a scale, and the drafters lack them",
        ask(**EAGLE, **fp8("none", "fp8")),
        "target.quantization.kv_cache",
        "EAGLE engines require float16 or bfloat16: FP8 is not supported",
    ),
    Row(
        "EAGLE README: no pipeline parallelism",
        ask(**EAGLE, target__parallel={"pipeline": 2}),
        "target.parallel.pipeline",
        "eagle engines do not support pipeline stages",
    ),
    Row(
        "models/medusa: Required but not provided tensors, the heads of the first stages",
        ask(**MEDUSA, target__parallel={"pipeline": 2}),
        "target.parallel.pipeline",
        "medusa engines do not support pipeline stages",
    ),
    Row(
        "models/redrafter: the logits are unpacked on every stage",
        ask(**REDRAFTER, target__parallel={"pipeline": 2}),
        "target.parallel.pipeline",
        "redrafter engines do not support pipeline stages",
    ),
    Row(
        "builder: Max batch size > 512 is not supported for EAGLE",
        ask(**EAGLE, engine__max_batch_size=513, engine__max_seq_len=64),
        "engine.max_batch_size",
        "EAGLE engines support at most 512 requests per step, not 513",
    ),
    Row(
        "EAGLE-2 is not supported via Triton",
        ask(**EAGLE, speculation__options={"dynamic": True}),
        "speculation.options.dynamic",
        "Triton cannot serve a dynamic tree (EAGLE-2): its backend passes on only eagle_choices",
    ),
    Row(
        "Triton backend: no posterior threshold",
        ask(**EAGLE, speculation__options={"lossy": True}),
        "speculation.options.lossy",
        "the Triton backend does not support typical acceptance",
    ),
    Row(
        "Medusa README: temperature 0 alone",
        ask(**MEDUSA),
        "speculation.method",
        "medusa engines always decode greedily, whatever the request's sampling",
        "warning",
    ),
    Row(
        "lookaheadDecodingLayer: the best logit is taken",
        ask(**LOOKAHEAD),
        "speculation.method",
        "lookahead engines always decode greedily, whatever the request's sampling",
        "warning",
    ),
    Row(
        "EAGLE README: greedy without a posterior threshold",
        ask(**EAGLE),
        "speculation.method",
        "eagle engines always decode greedily, whatever the request's sampling",
        "warning",
    ),
    Row(
        "#2678 Medusa's config for another base",
        ask(shape("qwen2.5-7b", architecture="Qwen3ForCausalLM"), speculation__method="medusa"),
        "speculation.method",
        "upstream has medusa examples for LlamaForCausalLM, MixtralForCausalLM, Qwen2ForCausalLM, not Qwen3ForCausalLM",
        "warning",
    ),
    Row(
        "lookahead README: only tensor parallelism",
        ask(**LOOKAHEAD, target__parallel={"pipeline": 2}),
        "target.parallel.pipeline",
        "upstream lists only tensor parallelism for lookahead_decoding",
        "warning",
    ),
    Row(
        "ReDrafter README: greedy engines ignore the temperature",
        ask(**REDRAFTER),
        "speculation.method",
        "redrafter engines always decode greedily, whatever the request's sampling",
        "warning",
    ),
    Row(
        "trtllm-build: Gather context logits is not supported with draft len > 0",
        extra(ask_pair, gather_context_logits=True),
        "engine.extra.gather_context_logits",
        "gather_context_logits disables KV cache reuse; trtllm-build rejects it with speculation",
    ),
    Row(
        "drafts are verified for one beam",
        extra(ask_pair, max_beam_width=4),
        "engine.extra.max_beam_width",
        "max_beam_width: serving and draft verification support one beam only",
    ),
    Row(
        "#2789 vocabularies of draft and target do not match",
        ask_pair(
            target=shape("llama-3.1-8b", vocab_size=32003),
            draft=shape("llama-3.2-1b", vocab_size=32003),
            target__parallel={"tensor": 2},
        ),
        "speculation.options.use_draft_logits",
        "with padding for their ranks, the target has 32004 logits and the draft 32003",
    ),
    Row(
        "pull 8329: automatic parallelism is gone",
        extra(auto_parallel=2),
        "engine.extra.auto_parallel",
        "trtllm-build 1.2.1 does not have the option auto_parallel",
    ),
    Row(
        "pull 1954: max_output_len is gone",
        extra(max_output_len=100),
        "engine.extra.max_output_len",
        "trtllm-build 1.2.1 does not have the option max_output_len",
    ),
    Row(
        "trtllm-build: invalid choice",
        extra(gemm_plugin="fp16"),
        "engine.extra.gemm_plugin",
        "gemm_plugin must be one of auto, float16, float32, bfloat16, int32, fp8, nvfp4, disable, not 'fp16'",
    ),
    Row(
        "trtllm-build: multiple_profiles is enabled, while opt_num_tokens is set",
        extra(multiple_profiles="enable", opt_num_tokens=64),
        "engine.extra.opt_num_tokens",
        "multiple_profiles and opt_num_tokens are mutually exclusive",
    ),
    Row(
        "runtime: requires GPT attention plugin with packed input and paged KV cache",
        extra(remove_input_padding="disable"),
        "engine.extra.remove_input_padding",
        "remove_input_padding is required for in-flight batching and cannot be disabled",
    ),
    Row(
        "#796 networks with FP8 precision require hardware with FP8 support",
        ask(engine__gpu="a100-80gb", **fp8("fp8")),
        "target.quantization.weights",
        "FP8 needs compute capability 8.9 (Ada, Hopper) or later, not a100-80gb (compute capability 8.0)",
    ),
    Row(
        "builder: Per-channel or per-token scaling is not supported on SM>=100",
        ask(engine__gpu="b200", **fp8("fp8_rowwise")),
        "target.quantization.weights",
        "fp8_rowwise engines cannot be built for b200 (compute capability 10.0): the builder rejects row-wise scales"
        " there",
    ),
    Row(
        "plugins: gemm_swiglu_plugin=fp8 is not supported on SM 100",
        ask(engine__gpu="b200", engine__extra={"gemm_swiglu_plugin": "fp8"}, **fp8("fp8")),
        "engine.extra.gemm_swiglu_plugin",
        "gemm_swiglu_plugin does not support b200 (compute capability 10.0)",
    ),
    Row(
        "plugins: FP8 matrices without FP8 weights",
        extra(low_latency_gemm_plugin="fp8"),
        "engine.extra.low_latency_gemm_plugin",
        "low_latency_gemm_plugin needs fp8 weights, but the target uses none",
    ),
    Row(
        "builder: GemmSwiGLU plugin requires --use_fused_mlp flag",
        ask(engine__extra={"gemm_swiglu_plugin": "fp8", "use_fused_mlp": "disable"}, **fp8("fp8")),
        "engine.extra.gemm_swiglu_plugin",
        "gemm_swiglu_plugin needs use_fused_mlp",
    ),
    Row(
        "builder: Overriding user_buffer to False",
        extra(user_buffer="enable"),
        "engine.extra.user_buffer",
        "the builder disables user_buffer: it needs reduce_fusion",
        "warning",
    ),
    Row(
        "trtllm-build: PP reduce scatter is only supported in the mixtral model",
        extra(pp_reduce_scatter="enable"),
        "engine.extra.pp_reduce_scatter",
        "pp_reduce_scatter supports only Mixtral",
    ),
    Row(
        "trtllm-build: a max_num_tokens larger than 16384 is usually not recommended",
        ask(engine__max_num_tokens=32768, engine__max_batch_size=16, engine__gpu="h200"),
        "engine.max_num_tokens",
        "32768 tokens per step; upstream advises against more than 16384",
        "warning",
    ),
    Row(
        "builder: Overriding reduce_fusion to False",
        extra(reduce_fusion="enable"),
        "engine.extra.reduce_fusion",
        "the builder disables reduce_fusion: it supports only Llama models divided over several GPUs",
        "warning",
    ),
    Row(
        "builder: max_num_tokens is raised in silence",
        ask(**MEDUSA, engine__max_num_tokens=128),
        "engine.max_num_tokens",
        "max_num_tokens 128 is less than max_batch_size 4 times 64 tokens to verify; trtllm-build would raise it",
    ),
    Row(
        "runtime: Prompt length exceeds maximum input length",
        ask(**MEDUSA, engine__max_num_tokens=512),
        "engine.max_num_tokens",
        "prompts of the target are not split into chunks, so 512 tokens per step are too few for max_input_len 1024",
    ),
    Row(
        "runtime: draft tokens that do not fit the last chunk are discarded",
        ask_pair(engine__max_num_tokens=1024),
        "engine.max_num_tokens",
        "texts longer than a step of 1024 tokens are split into chunks, after which the scheduler drops drafts that"
        " reach into another block of the KV cache",
        "warning",
    ),
    Row(
        "#1221, #2451 out of memory",
        ask("llama-3.3-70b"),
        "engine.gpu",
        "GPU 0: weights and activations take about 133.3 GiB, but the GPU has 79.0 GiB",
    ),
    Row(
        "runtime: maxSequenceLen is reduced to maxAttentionWindow",
        ask(engine__gpu="l4", engine__max_seq_len=131072),
        "engine.max_seq_len",
        "GPU 0: about 5.5 GiB remain for KV caches, 44960 tokens, but a text may have 131072 tokens, drafts included",
    ),
    Row(
        "runtime: requests wait for KV cache blocks",
        ask(engine__gpu="l4", engine__max_batch_size=64),
        "engine.max_batch_size",
        "GPU 0: KV caches hold 21 of max_batch_size 64 texts of max_seq_len; the others wait",
        "warning",
    ),
    Row(
        "runtime: deviceIds * numNodes must be equal to tp*pp*cp",
        ask(target__parallel={"tensor": 2}, serving__placement={"target": [0]}),
        "serving.placement.target",
        "the target is divided over 2 GPUs, but 1 are listed",
    ),
    Row(
        "a draft is placed that there is not",
        ask(speculation__method="ngram", serving__placement={"target": [0], "draft": [1]}),
        "serving.placement.draft",
        "ngram does not use a draft model",
    ),
    Row(
        "runtime: device ids are of one node",
        ask(serving__placement={"target": [8]}),
        "serving.placement.target",
        "GPU 8: a node's GPUs are numbered 0 to 7",
    ),
    Row(
        "orchestrated workers run on a single node",
        ask(target__parallel={"tensor": 8, "pipeline": 2}),
        "target.parallel",
        "the target has 16 ranks, but engines are served on one node of 8",
    ),
    Row(
        "Triton backend: fast logits are disabled with a warning",
        ask_pair(serving__fast_logits=True, speculation__options={"use_draft_logits": False}),
        "serving.fast_logits",
        "fast_logits is ignored without use_draft_logits",
    ),
    Row(
        "fast logits without a draft model",
        ask(speculation__method="ngram", serving__fast_logits=True),
        "serving.fast_logits",
        "fast_logits transfers a draft model's logits, but ngram does not use one",
    ),
    Row(
        "#3031 an engine for another GPU (compute 9.0 and 8.9)",
        ask(engine__gpu=None),
        "engine",
        "engines are built for one kind of GPU, but engine.gpu is missing",
    ),
    Row(
        "support matrix: Ampere and later",
        ask(engine__gpu="v100"),
        "engine.gpu",
        "TensorRT-LLM 1.2.1 runs on Ampere and later, not on v100 (compute capability 7.0)",
    ),
    Row(
        "Unsupported model architecture",
        ask(shape("llama-3.1-8b", architecture="OlmoForCausalLM")),
        "target.model",
        "TensorRT-LLM 1.2.1 does not support engines of OlmoForCausalLM",
        before=f"target/config.json: architecture 'OlmoForCausalLM' is not supported; supported: {SERVED}",
    ),
]

KNOWN_FAILURES += [
    Row(
        "GemmaDecoderLayer.forward() got an unexpected keyword argument 'spec_decoding_params'",
        ask("gemma-2-9b", **LOOKAHEAD),
        "speculation.method",
        "lookahead engines do not support Gemma2ForCausalLM: its layers do not accept an attention mask for drafts",
    ),
    Row(
        "Phi3DecoderLayer.forward() got an unexpected keyword argument 'spec_decoding_params'",
        ask("phi-4", speculation__method="medusa"),
        "speculation.method",
        "medusa engines do not support Phi3ForCausalLM: its layers do not accept an attention mask for drafts",
    ),
    Row(
        "GraniteForCausalLM is a Llama class, and Medusa's class is another one",
        ask("granite-3.3-8b", speculation__method="medusa"),
        "speculation.method",
        "engines of GraniteForCausalLM have not been compared with upstream with medusa, which may omit its"
        " multipliers",
        "warning",
    ),
    Row(
        "no example of lookahead with Granite",
        ask("granite-3.3-8b", **LOOKAHEAD),
        "speculation.method",
        "engines of GraniteForCausalLM have not been compared with upstream with lookahead, which may omit its"
        " multipliers",
        "warning",
    ),
    Row(
        "no example of row-wise scales with Granite",
        ask("granite-3.3-8b", **fp8("fp8_rowwise")),
        "target.quantization.weights",
        "engines of GraniteForCausalLM have not been compared with upstream with fp8_rowwise weights, whose layers may"
        " omit its multipliers",
        "warning",
    ),
    Row(
        "#3247 only the 1B model of Gemma 3",
        ask("gemma-3-4b", engine__max_seq_len=1024),
        "target.model",
        "engines of Gemma3ForCausalLM also scale the rotary positions of sliding-window layers,"
        " so their output is wrong",
    ),
    Row(
        "layer_idx + 1) % _sliding_window_pattern",
        ask(shape("gemma-3-4b", full_layers=(5, 10)), engine__max_seq_len=1024),
        "target.model",
        "engines of Gemma3ForCausalLM place layers without a sliding window at a fixed distance,"
        " but this model has other ones",
    ),
    Row(
        "Attention(eps=1e-05) is not handed Gemma's rms_norm_eps",
        ask("gemma-3-4b", engine__max_seq_len=1024),
        "target.model",
        "engines of Gemma3ForCausalLM normalize queries and keys with an epsilon of 1e-05, not 1e-06",
        "warning",
    ),
    Row(
        "GemmaConfig: use_parallel_embedding is tp_size > 1, whatever it is",
        ask("gemma-2-9b", target__parallel={"tensor": 2, "embedding": False}),
        "target.parallel.embedding",
        "engines of Gemma2ForCausalLM divide the embedding over their ranks",
    ),
    Row(
        "Fp8RowwiseAttention lacks q_scaling, max_attn_value and rope_scaling_short_factors",
        ask("gemma-2-9b", **fp8("fp8_rowwise")),
        "target.quantization.weights",
        "fp8_rowwise engines of Gemma2ForCausalLM omit its extensions of Llama's layers",
    ),
    Row(
        "Phi3Config reads no attention_factor",
        ask(shape("phi-4-mini", rope_scaling=replace(LONGROPE, attention_factor=1.5))),
        "target.model",
        "engines of Phi3ForCausalLM derive an attention_factor of 1.1902 from their lengths, but the model has 1.5000",
    ),
    Row(
        "Required but not provided tensors:{'transformer.vocab_embedding.weight'}: Phi3Model has one on every stage",
        ask("phi-4", target__parallel={"pipeline": 2}),
        "target.parallel.pipeline",
        "engines of Phi3ForCausalLM do not support pipeline stages",
    ),
    Row(
        "examples/phi: no TP for Phi-4",
        ask("phi-4", target__parallel={"tensor": 2}),
        "target.parallel.tensor",
        "upstream does not list tensor parallelism for Phi3ForCausalLM",
        "warning",
    ),
    Row(
        "examples/phi: no Phi-4-mini",
        ask("phi-4-mini"),
        "target.model",
        "upstream does not list a Phi3ForCausalLM that rotates 75% of each head, as Phi-4-mini does",
        "warning",
    ),
]

# Failures that `check` itself detects for every engine.
MET_BEFORE = [
    Row(
        "BE#498, #2804 it runs and is not faster",
        ask("llama-3.3-70b", "llama-3.1-8b", speculation__method="draft_target", target__parallel={"tensor": 4}),
        "speculation.draft.model",
        "the target is 8.8 times the draft (70,553.7 M and 8,030.3 M parameters, on 4 GPUs and 1): even if 80% of the"
        " drafted tokens are accepted, 5 per step make it at most 1.13 times as fast",
        "warning",
    ),
    Row(
        "examples/gemma: the maximum sequence length allowed is 4096 (Gemma 2)",
        ask("gemma-2-9b", engine__max_seq_len=8192),
        "engine.max_seq_len",
        "max_seq_len 8192 is more than the target's 4096 tokens of sliding window",
    ),
    Row(
        "#5978 Qwen3 with experts",
        ask(shape("llama-3.1-8b", architecture="Qwen3MoeForCausalLM")),
        "target.model",
        f"target/config.json: architecture 'Qwen3MoeForCausalLM' is not supported; supported: {SERVED}",
    ),
    Row(
        "#2115 FP8 Medusa heads",
        ask(**MEDUSA, speculation__draft__quantization={"weights": "fp8"}),
        "speculation.draft.quantization",
        "medusa is stored with the target, with the same dtype and parallelism",
    ),
    Row(
        "#1845 Medusa with weights in INT8",
        ask(**MEDUSA, target__quantization={"weights": "int8_wo"}),
        "target.quantization.weights",
        "'int8_wo' is not one of none, fp8, fp8_rowwise",
    ),
    Row(
        "basetenlabs/truss#1391 lookahead's draft length has to match its sizes",
        ask(**LOOKAHEAD, speculation__draft_len=7),
        "speculation.draft_len",
        "lookahead does not use draft_len; its options determine the length",
    ),
    Row(
        "#2602 FP8 without scales of activations",
        ask(**fp8("fp8")),
        "target.quantization",
        "no calibration prompts are set; activations are measured on prompts that come with trtspec",
        "warning",
    ),
    Row(
        "#5451 lookahead in 0.20: cudaGetLastError(): invalid configuration argument",
        ask(**LOOKAHEAD, engine__version="0.20"),
        "engine.version",
        "unsupported version 0.20",
    ),
    Row(
        "pull 15918: trtllm-build is gone",
        ask(engine__version="1.3"),
        "engine.version",
        "unsupported version 1.3",
    ),
    Row(
        "quantization/quantize.py: attentions are replaced whole, where FP8 has a scale for each row",
        ask(**fp8("fp8_rowwise", exclude=["lm_head", "*attention.qkv"])),
        "target.quantization.exclude",
        "fp8_rowwise engines have one format for a layer's attention; exclude '*.attention.*' or none (layer 0)",
    ),
]
