# SPDX-License-Identifier: Apache-2.0
"""DSpark in SGLang."""

from __future__ import annotations

from trtspec.backends.sglang.versions import SglangMethod
from trtspec.methods.base import DraftShape, Options


def _fields(options: Options, shape: DraftShape) -> dict[str, int]:
    return {"speculative_dspark_block_size": shape.max_depth}  # DFLASH also counts the token before the draft tokens


METHOD = SglangMethod("DSPARK", _fields, has_net=True, drafts_blocks=True)
