# SPDX-License-Identifier: Apache-2.0
"""Config keys of block nets shared by several dialects, which follow z-lab's format."""

from __future__ import annotations

from trtspec.methods.draft_formats.dialect import Key

# z-lab/dflash:dflash/model.py@44947fb reads block_size and num_target_layers at the top level.
BLOCK = (
    Key("block_size", ("block_size",), is_needed=True),
    Key("num_target_layers", ("num_target_layers",), is_needed=True),
    Key("hidden_layers", ("dflash_config", "target_layer_ids"), shift=-1),
    Key("mask_token", ("dflash_config", "mask_token_id"), is_needed=True),
)
MARKOV = (
    Key("markov_rank", ("dflash_config", "markov_rank")),
    Key("markov_head", ("dflash_config", "markov_head_type")),
)
