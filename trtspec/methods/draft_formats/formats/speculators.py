# SPDX-License-Identifier: Apache-2.0
"""speculators: vllm-project/speculators:src/speculators/models/{eagle3,peagle,dflash,dspark}/{config,core}.py@v0.9.0.

Layers are numbered by their inputs. norm_before_residual and sample_from_anchor are always written, because the
defaults of vLLM and of the trainer differ
(vllm-project/vllm:vllm/transformers_utils/configs/speculators/algos.py@v0.32.0).
"""

from __future__ import annotations

from typing import Any

from trtspec.methods.draft_formats.base import (
    CONFIDENCE_KEYS,
    EMBEDDING,
    LM_HEAD,
    MARKOV_KEYS,
    DraftFormat,
    DraftSchema,
    Key,
)

_TYPE = "speculators_model_type"
_HEAD = (
    Key("aux_layers", "eagle_aux_hidden_state_layer_ids"),
    Key("draft_vocab_size"),
    Key("target_hidden_size", always=False),
    Key("norm_before_residual"),
    Key("norm_before_fc"),
    Key("fc_norm"),
    Key("norm_output"),
)
_BLOCK = (
    Key("hidden_layers", "aux_hidden_state_layer_ids"),
    Key("draft_vocab_size"),
    Key("target_hidden_size", always=False),
    Key("block_size"),
    Key("mask_token", "mask_token_id", is_needed=True),
    Key("sample_from_anchor"),
    Key("sliding_causal", "sliding_window_non_causal", inverted=True),
)
_CARRIED = dict.fromkeys(
    ("speculators_config", "speculators_version", "embed_requires_grad", "has_no_defaults_at_init", "auto_map")
)
_COMMON: dict[str, Any] = {
    "section": "transformer_layer_config",
    "carried": _CARRIED,
    "marks": (_TYPE,),
    "has_speculators_config": True,
}
_NO_FC_BIAS = {r"fc\.bias": "its fc does not support a bias"}

DIALECT = DraftFormat(
    "speculators",
    {
        "eagle3": DraftSchema(
            "Eagle3DraftModel", _HEAD, fixed={_TYPE: "eagle3"}, needs=(LM_HEAD,), lacks=_NO_FC_BIAS, **_COMMON
        ),
        "p_eagle": DraftSchema(
            "PEagleDraftModel",
            (*_HEAD, Key("mask_token", "mask_token_id", is_needed=True)),
            fixed={_TYPE: "peagle"},
            needs=(LM_HEAD,),
            lacks=_NO_FC_BIAS,
            **_COMMON,
        ),
        "dflash": DraftSchema(
            "DFlashDraftModel", _BLOCK, fixed={_TYPE: "dflash"}, shared=(EMBEDDING, LM_HEAD), **_COMMON
        ),
        "dspark": DraftSchema(
            "DSparkDraftModel",
            (*_BLOCK, *MARKOV_KEYS, *CONFIDENCE_KEYS),
            fixed={_TYPE: "dspark"},
            shared=(EMBEDDING, LM_HEAD),
            **_COMMON,
        ),
    },
)
