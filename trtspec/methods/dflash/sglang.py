# SPDX-License-Identifier: Apache-2.0
"""DFlash in SGLang."""

from __future__ import annotations

from trtspec.backends.sglang.versions import SglangMethod

METHOD = SglangMethod("DFLASH", has_net=True, drafts_blocks=True)
