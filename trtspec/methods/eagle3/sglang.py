# SPDX-License-Identifier: Apache-2.0
"""EAGLE-3 in SGLang."""

from __future__ import annotations

from trtspec.backends.sglang.versions import SglangMethod
from trtspec.methods.eagle3 import Eagle3Options


def _tree_width(options: Eagle3Options) -> int:
    return options.top_k or 1


METHOD = SglangMethod("EAGLE3", tree_width=_tree_width, has_net=True, has_eagle_worker=True)
