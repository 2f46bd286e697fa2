# SPDX-License-Identifier: Apache-2.0
"""Config keys of Medusa heads shared by several dialects."""

from __future__ import annotations

from trtspec.methods.draft_formats.dialect import Key

SIZES = (Key("hidden_size", ("hidden_size",)), Key("vocab_size", ("vocab_size",)))
CARRIED = dict.fromkeys(("dtype", "torch_dtype", "transformers_version", "_name_or_path"))
