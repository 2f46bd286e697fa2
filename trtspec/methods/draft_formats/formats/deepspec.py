# SPDX-License-Identifier: Apache-2.0
"""DeepSpec, with Qwen3's layers: deepseek-ai/DeepSpec:deepspec/modeling/dspark/qwen3/{config,modeling}.py@afdfa7c.

EAGLE-3 heads are in deepspec/modeling/eagle3/qwen3. Nets contain frozen copies of the target's embedding and LM head
and draft the whole vocabulary. Layers are numbered by their outputs, with -1 for the embedding. DeepSpec cannot load a
net without the trainer's keys; their defaults here are those in DeepSpec's config/ for Qwen3-8B.
"""

from __future__ import annotations

from trtspec.methods.draft_formats.base import (
    CONFIDENCE_KEYS,
    EMBEDDING,
    LM_HEAD,
    MARKOV_KEYS,
    DraftFormat,
    DraftSchema,
    Key,
)

DIALECT = DraftFormat(
    "DeepSpec",
    {
        "eagle3": DraftSchema(
            "Qwen3Eagle3Model",
            (Key("aux_layers", "target_layer_ids", shift=-1, is_needed=True), Key("num_target_layers")),
            carried={
                "ttt_length": 7,
                "step_loss_decay": 0.8,
                "target_model_name_or_path": None,
                "draft_num_hidden_layers": None,
            },
            marks=("target_layer_ids", "ttt_length"),
            needs=(EMBEDDING, LM_HEAD, "layers.0.self_attn.q_norm.weight", "layers.0.self_attn.k_norm.weight"),
            lacks={r"input_norm\..*|fc_norm\..*|fc\.bias": "its heads do not support it"},
            has_t2d=False,
        ),
        "dspark": DraftSchema(
            "Qwen3DSparkModel",
            (
                Key("block_size"),
                Key("num_target_layers"),
                Key("hidden_layers", "target_layer_ids", shift=-1),
                Key("mask_token", "mask_token_id", is_needed=True),
                *MARKOV_KEYS,
                *CONFIDENCE_KEYS,
            ),
            implied={"sample_from_anchor": True},
            carried={"num_anchors": 512},
            marks=("target_layer_ids", "markov_rank", "mask_token_id"),
            needs=(EMBEDDING, LM_HEAD),
            has_t2d=False,
        ),
    },
)
