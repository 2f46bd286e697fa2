# SPDX-License-Identifier: Apache-2.0
"""EAGLE-3 in SGLang."""

from __future__ import annotations

from trtspec.backends.sglang.versions import SglangMethod

METHOD = SglangMethod("EAGLE3", tree_width=lambda options: options.top_k or 1, has_net=True, has_eagle_worker=True)
