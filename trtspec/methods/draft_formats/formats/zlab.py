# SPDX-License-Identifier: Apache-2.0
"""z-lab's DFlash nets (z-lab/dflash:dflash/model.py@44947fb), which use the target's embedding and LM head."""

from __future__ import annotations

from trtspec.methods.draft_formats.base import BLOCK_KEYS, EMBEDDING, LM_HEAD, DraftFormat, DraftSchema

DIALECT = DraftFormat(
    "z-lab",
    {
        "dflash": DraftSchema(
            "DFlashDraftModel",
            BLOCK_KEYS,
            carried={"auto_map": None},
            marks=("dflash_config",),
            shared=(EMBEDDING, LM_HEAD),
            has_t2d=False,
        )
    },
)
