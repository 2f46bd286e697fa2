# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's ModelOpt: NVIDIA/Model-Optimizer:modelopt/torch/export/plugins/hf_spec_export.py@0.47.0.

EAGLE-3 heads have only the tensors of LLAMA_EAGLE_SINGLE_LAYER in that file, without t2d and the embedding. Block nets
are in z-lab's format with an additional key `causal` and with the Markov head's tensors at the top level. Medusa heads
are stored in the target's files (modelopt/torch/speculative/plugins/hf_medusa.py in the same repository).
"""

from __future__ import annotations

from trtspec.methods.draft_formats.base import (
    BLOCK_KEYS,
    EMBEDDING,
    LM_HEAD,
    MARKOV_KEYS,
    MEDUSA_SIZES,
    DraftFormat,
    DraftSchema,
    Key,
    within,
)
from trtspec.methods.medusa import IN_A_MODEL

_BLOCK = (*BLOCK_KEYS, Key("causal", "dflash_config.causal"))
_ONLY = "its exporter does not write this tensor"

DIALECT = DraftFormat(
    "ModelOpt",
    {
        "eagle3": DraftSchema(
            "LlamaForCausalLMEagle3",
            (
                Key("aux_layers", "eagle_config.eagle_aux_hidden_state_layer_ids", shift=-1, is_needed=True),
                Key("draft_vocab_size"),
            ),
            fixed={
                "eagle_config.use_aux_hidden_state": True,
                "eagle_config.use_input_layernorm_in_first_layer": True,
                "eagle_config.use_last_layernorm": True,
                "eagle_config.use_mtp_layernorm": False,
                "eagle_config.next_layer_regular": True,
                "eagle_config.parallel_draft_step": 1,
                "eagle_config.parallel_draft_heads_num_layers": 1,
            },
            marks=("eagle_config", "eagle_config.next_layer_regular", "layers.0."),
            needs=(LM_HEAD,),
            shared=(EMBEDDING,),
            lacks={r".*\.self_attn\.[qk]_norm\.weight|input_norm\..*|fc_norm\..*|.*\.bias": _ONLY},
            has_t2d=False,
        ),
        "dflash": DraftSchema(
            "DFlashDraftModel",
            _BLOCK,
            marks=("dflash_config", "dflash_config.causal"),
            shared=(EMBEDDING, LM_HEAD),
            has_t2d=False,
        ),
        "medusa": DraftSchema(
            "ModelOpt's MedusaModel",
            (
                *within("medusa", Key("num_heads", "num_medusa_heads"), Key("num_layers", "num_medusa_layers")),
                *MEDUSA_SIZES,
            ),
            implied={"has_bias": True},
            marks=("medusa.num_medusa_heads", "medusa_heads."),
            names=IN_A_MODEL,
        ),
        "dspark": DraftSchema(
            "DFlashDraftModel",
            (*_BLOCK, *within("dflash_config", *MARKOV_KEYS, Key("has_confidence", "use_confidence_head"))),
            implied={"sample_from_anchor": True, "confidence_with_markov": True},
            fixed={"dflash_config.projector_type": "dspark", "dflash_config.shift_label": True},
            marks=("dflash_config", "dflash_config.causal", "dflash_config.use_confidence_head", "markov_w1"),
            renames={"markov_head.": "", "confidence_head.proj.": "confidence_proj."},
            shared=(EMBEDDING, LM_HEAD),
            has_t2d=False,
        ),
    },
)
