# SPDX-License-Identifier: Apache-2.0
"""FasterDecoding's Medusa heads: FasterDecoding/Medusa:medusa/train/train_legacy.py@e2a5d20.

TGI recognizes the weight file by its name, and uses the heads only if config.json lacks `architectures`
(huggingface/text-generation-inference:server/text_generation_server/layers/{speculative,medusa}.py@db931fcf). Heads
without vocabulary matrices share the target's LM head. vLLM also reads this format; it uses biases only if
medusa_fc_bias is true. FasterDecoding assumes a Vicuna target if base_model_name_or_path is missing.
"""

from __future__ import annotations

from trtspec.methods.draft_formats.base import LM_HEAD, MEDUSA_CARRIED, MEDUSA_SIZES, DraftFormat, DraftSchema, Key
from trtspec.methods.medusa import SEQUENTIAL

_TARGET = "base_model_name_or_path"

DIALECT = DraftFormat(
    "FasterDecoding/Medusa",
    {
        "medusa": DraftSchema(
            "FasterDecoding's MedusaModel",
            (Key("num_heads", "medusa_num_heads"), Key("num_layers", "medusa_num_layers"), *MEDUSA_SIZES),
            implied={"has_bias": True},
            fixed={"medusa_fc_bias": True},
            carried={_TARGET: None, "version": None, "model_type": None, **MEDUSA_CARRIED},
            marks=("medusa_num_heads",),
            shared=(LM_HEAD,),
            in_tensors=("shares_lm_head",),
            names=SEQUENTIAL,
            names_target=_TARGET,
            weights="medusa_lm_head.safetensors",
        )
    },
)
