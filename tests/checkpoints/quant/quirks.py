# SPDX-License-Identifier: Apache-2.0
"""Every difference between NVIDIA's exporter and ours, with the reason to leave it so: one table.

Files named in it are below modelopt/torch/export of ModelOpt 0.47. The tests demand that there is no other difference,
and that each of these still occurs.
"""

from __future__ import annotations

from dataclasses import dataclass

# A key of config.json: which of the two writes it, or that the values differ.
THEIRS, OURS, DIFFERS = "only ModelOpt writes it", "only we write it", "the values differ"
# A model: what keeps ModelOpt from exporting it, or from exporting it right.
REFUSES, PADS = "ModelOpt refuses it", "ModelOpt pads it"
LEAVES_OUT, CUTS = "ModelOpt leaves it out", "ModelOpt cuts it elsewhere"

NO_RUNTIME = "filled in by TensorRT-LLM's own config classes, which ModelOpt asks for where TensorRT-LLM is installed"
NOT_READ = "a field of ModelOpt's own that no engine builder reads"
ROPE = "transformers 5 keeps it in rope_parameters, and ModelOpt looks where transformers 4 kept it"


@dataclass(frozen=True)
class Quirk:
    """A difference, and the reason to leave it so."""

    kind: str
    why: str


QUIRKS = {
    "producer": Quirk(DIFFERS, "each names itself"),
    "intermediate_size": Quirk(
        DIFFERS, "ModelOpt counts the rows of Phi's mlp.fc, which holds both branches; TensorRT-LLM's class corrects it"
    ),
    "logits_dtype": Quirk(DIFFERS, "ours is that of TensorRT-LLM's convert_checkpoint.py, whose logits are float32"),
    "quantization.exclude_modules": Quirk(DIFFERS, "ModelOpt names every router, ours is TensorRT-LLM's own pattern"),
    "bias": Quirk(THEIRS, NOT_READ),
    "decoder": Quirk(THEIRS, NOT_READ),
    "lm_head_bias": Quirk(THEIRS, NOT_READ),
    "rank": Quirk(THEIRS, "the last rank's: one file serves them all"),
    "residual_mlp": Quirk(THEIRS, "false, as is the default; true for Arctic, which we do not serve"),
    "rmsnorm": Quirk(THEIRS, NOT_READ),
    "rotary_pct": Quirk(THEIRS, "1, as is the default; ours is there for Phi, which may rotate a part of a head"),
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
    "emb_scale_by_sqrt_dim": Quirk(OURS, "for the torch engine; TensorRT-LLM tells by the architecture"),
    "layer_types": Quirk(OURS, "for the torch engine; TensorRT-LLM is told when it runs"),
    "mapping.cp_size": Quirk(OURS, NO_RUNTIME),
    "mapping.gpus_per_node": Quirk(OURS, NO_RUNTIME),
    "rotary_base": Quirk(OURS, ROPE),
    "rotary_scaling": Quirk(OURS, ROPE),
    "sliding_window": Quirk(OURS, "for the torch engine; TensorRT-LLM is told when it runs, max_attention_window_size"),
    "a tied head of Gemma": Quirk(
        LEAVES_OUT, "TensorRT-LLM's own convert.py writes it, and a checkpoint of every family has one here"
    ),
    "both branches of Phi": Quirk(
        CUTS, "postprocess.py divides mlp.fc as if it were one branch, and engines want a part of both on each rank"
    ),
    "config.json of Gemma and Phi": Quirk(
        REFUSES,
        "tensorrt_llm_utils.py leaves it to TensorRT-LLM; for the tensors a stand-in will do",
    ),
    "experts that do not divide by the ranks": Quirk(
        PADS,
        "postprocess.py rounds the rows of the stacked mlp.proj as if the experts were divided",
    ),
    "uneven pipeline": Quirk(REFUSES, "postprocess.py wants equally many layers on every stage"),
    "shared key heads by rows": Quirk(REFUSES, "layer_utils.py build_qkv does not repeat scales of one dimension"),
    "experts by rows": Quirk(REFUSES, "layer_utils.py stacks w3's and w1's scales as if they were further experts"),
    "stacked experts": Quirk(REFUSES, "layer_utils.py wants a list of experts, which transformers 5 no longer has"),
}
