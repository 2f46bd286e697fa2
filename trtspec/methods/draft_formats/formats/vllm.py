# SPDX-License-Identifier: Apache-2.0
"""Medusa heads with the tensor names of vLLM's class: vllm-project/vllm:vllm/model_executor/models/medusa.py@v0.32.0.

The keys are from vllm/transformers_utils/configs/medusa.py in the same repository, which interprets any key with "num"
and "heads" or "layers" as a key of the heads. Heads compute in the target's dtype. logit_scale is ignored, because it
does not change the order of tokens.
"""

from __future__ import annotations

from trtspec.methods.draft_formats.base import MEDUSA_CARRIED, MEDUSA_SIZES, DraftFormat, DraftSchema, Key
from trtspec.methods.medusa import LISTED

_UNUSED = ("max_paths", "topk", "max_seq_len", "num_lookahead_tokens", "truncated_vocab_size", "logit_scale")

DIALECT = DraftFormat(
    "vLLM",
    {
        "medusa": DraftSchema(
            "vLLM's MedusaModel",
            (
                Key("num_heads"),
                Key("num_layers", "num_hidden_layers"),
                *MEDUSA_SIZES,
                Key("has_bias", "medusa_fc_bias"),
                Key("shares_lm_head", "original_lm_head", always=False),
            ),
            fixed={"architectures": ["MedusaModel"], "model_type": "medusa"},
            carried={**dict.fromkeys(_UNUSED), **MEDUSA_CARRIED},
            marks=("blocks.", "lm_head"),
            names=LISTED,
        )
    },
)
