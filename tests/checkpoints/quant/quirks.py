# SPDX-License-Identifier: Apache-2.0
"""All differences between NVIDIA's exporter and trtspec, each with the reason to keep it.

File names are relative to modelopt/torch/export of ModelOpt 0.47. The tests assert that these are all differences,
and that each of these still occurs.
"""

from __future__ import annotations

from dataclasses import dataclass

# Kinds of differences in a key of config.json.
THEIRS, OURS, DIFFERS = "only ModelOpt writes it", "only we write it", "the values differ"
# Kinds of ModelOpt's failures to export a model, or to export it correctly.
REFUSES, PADS = "ModelOpt refuses it", "ModelOpt pads it"
LEAVES_OUT, CUTS = "ModelOpt leaves it out", "ModelOpt cuts it elsewhere"

NO_RUNTIME = "set by TensorRT-LLM's config classes, which ModelOpt uses if TensorRT-LLM is installed"
NOT_READ = "a ModelOpt field that no engine builder reads"
ROPE = "transformers 5 has it in rope_parameters, but ModelOpt reads the location of transformers 4"


@dataclass(frozen=True)
class Quirk:
    """A difference, and the reason to keep it."""

    kind: str
    why: str


QUIRKS = {
    "producer": Quirk(DIFFERS, "each writes its own name"),
    "intermediate_size": Quirk(
        DIFFERS, "ModelOpt counts the rows of Phi's mlp.fc, which holds both branches; TensorRT-LLM's class corrects it"
    ),
    "logits_dtype": Quirk(DIFFERS, "float32, as in TensorRT-LLM's convert_checkpoint.py"),
    "quantization.exclude_modules": Quirk(
        DIFFERS, "ModelOpt lists every router; trtspec writes TensorRT-LLM's pattern"
    ),
    "bias": Quirk(THEIRS, NOT_READ),
    "decoder": Quirk(THEIRS, NOT_READ),
    "lm_head_bias": Quirk(THEIRS, NOT_READ),
    "rank": Quirk(THEIRS, "the number of the last rank; the file is shared by all ranks"),
    "residual_mlp": Quirk(THEIRS, "false, which is the default; true only for Arctic, which is not supported"),
    "rmsnorm": Quirk(THEIRS, NOT_READ),
    "rotary_pct": Quirk(
        THEIRS, "1, which is the default; trtspec writes it for Phi, which may rotate a part of a head"
    ),
    "share_embedding_table": Quirk(THEIRS, "always false here; TensorRT-LLM finds shared tensors by comparing them"),
    "attn_bias": Quirk(OURS, NO_RUNTIME),
    "mlp_bias": Quirk(OURS, NO_RUNTIME),
    "qk_layernorm": Quirk(OURS, NO_RUNTIME),
    "qwen_type": Quirk(OURS, NO_RUNTIME),
    "tie_word_embeddings": Quirk(OURS, NO_RUNTIME),
    "_sliding_window_pattern": Quirk(OURS, NO_RUNTIME),
    "attn_logit_softcapping": Quirk(OURS, NO_RUNTIME),
    "final_logit_softcapping": Quirk(OURS, NO_RUNTIME),
    "inter_layernorms": Quirk(OURS, NO_RUNTIME),
    "query_pre_attn_scalar": Quirk(OURS, NO_RUNTIME),
    "rope_local_base_freq": Quirk(OURS, NO_RUNTIME),
    "emb_scale_by_sqrt_dim": Quirk(OURS, "for the torch engine; TensorRT-LLM decides by the architecture"),
    "layer_types": Quirk(OURS, "for the torch engine; TensorRT-LLM has a run-time option"),
    "mapping.cp_size": Quirk(OURS, NO_RUNTIME),
    "mapping.gpus_per_node": Quirk(OURS, NO_RUNTIME),
    "rotary_base": Quirk(OURS, ROPE),
    "rotary_scaling": Quirk(OURS, ROPE),
    "sliding_window": Quirk(
        OURS, "for the torch engine; TensorRT-LLM has a run-time option, max_attention_window_size"
    ),
    "a tied head of Gemma": Quirk(
        LEAVES_OUT, "TensorRT-LLM's own convert.py writes it, and every checkpoint of trtspec has one"
    ),
    "both branches of Phi": Quirk(
        CUTS, "postprocess.py divides mlp.fc as one branch, but engines need a part of both on each rank"
    ),
    "config.json of Gemma and Phi": Quirk(
        REFUSES,
        "tensorrt_llm_utils.py uses TensorRT-LLM; a stand-in suffices for the tensors",
    ),
    "experts that do not divide by the ranks": Quirk(
        PADS,
        "postprocess.py rounds the rows of the stacked mlp.proj as if the experts were divided",
    ),
    "uneven pipeline": Quirk(REFUSES, "postprocess.py requires the same number of layers on every stage"),
    "shared key heads by rows": Quirk(REFUSES, "layer_utils.py build_qkv does not repeat scales of one dimension"),
    "experts by rows": Quirk(REFUSES, "layer_utils.py stacks w3's and w1's scales as if they were additional experts"),
    "stacked experts": Quirk(REFUSES, "layer_utils.py requires a list of experts, which transformers 5 does not have"),
}
