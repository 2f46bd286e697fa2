# SPDX-License-Identifier: Apache-2.0
"""SpecForge, with the tensor names of SafeAILab/EAGLE; SGLang reads this format.

sgl-project/SpecForge:specforge/modeling/draft/llama3_eagle.py@a6b6b02, peagle.py, dflash.py and dspark.py in the same
folder, and configs/. norm_output is always written, because without it training assumes true and serving assumes false
(sglang/srt/models/llama_eagle3.py@0.5.23). DFlash nets are in z-lab's format.
"""

from __future__ import annotations

from trtspec.methods.draft_formats.base import (
    BLOCK_KEYS,
    CONFIDENCE_KEYS,
    EMBEDDING,
    LM_HEAD,
    MARKOV_KEYS,
    DraftFormat,
    DraftSchema,
    Key,
    within,
)

QK_NORM = {r".*\.self_attn\.[qk]_norm\.weight": "its attention does not support q and k norms"}
HEAD = (
    Key("aux_layers", "eagle_config.eagle_aux_hidden_state_layer_ids", shift=-1),
    Key("draft_vocab_size"),
    Key("target_hidden_size", always=False),
)

DIALECT = DraftFormat(
    "SpecForge",
    {
        "eagle3": DraftSchema(
            "LlamaForCausalLMEagle3",
            (
                *HEAD,
                Key("norm_output"),
                Key("fc_norm", always=False),
                Key("norm_before_fc", always=False),
            ),
            fixed={"eagle_config.use_aux_hidden_state": True},
            marks=("midlayer.", "eagle_config", "t2d"),
            renames={"layers.0.": "midlayer."},
            needs=(LM_HEAD, "d2t", "t2d"),
            lacks={**QK_NORM, r"fc\.bias": "its fc does not support a bias"},
            maps_whole_vocabulary=True,
        ),
        "p_eagle": DraftSchema(
            "PEagleDraftModel",
            (
                *HEAD,
                Key("norm_before_residual"),
                Key("mask_token", "mask_token_id", is_needed=True),
            ),
            fixed={"eagle_config.use_aux_hidden_state": True},
            carried={"parallel_drafting": None},
            marks=("eagle_config",),
            needs=(LM_HEAD, "d2t", "t2d"),
            lacks=QK_NORM,
            maps_whole_vocabulary=True,
        ),
        "dspark": DraftSchema(
            "DSparkDraftModel",
            (*BLOCK_KEYS, *within("dflash_config", *MARKOV_KEYS, *CONFIDENCE_KEYS)),
            implied={"sample_from_anchor": True},
            fixed={"dflash_config.projector_type": "dspark", "dflash_config.attention_mode": "gqa"},
            carried={"auto_map": None, "dflash_config.confidence_head_alpha": None},
            marks=("dflash_config", "markov_head."),
            shared=(EMBEDDING, LM_HEAD),
            has_t2d=False,
        ),
    },
)
