# SPDX-License-Identifier: Apache-2.0
"""Keys of Medusa heads that several dialects write alike."""

from __future__ import annotations

from trtspec.methods.draft_formats.dialect import Key

SIZES = (Key("hidden_size", ("hidden_size",)), Key("vocab_size", ("vocab_size",)))
CARRIED = dict.fromkeys(("dtype", "torch_dtype", "transformers_version", "_name_or_path"))
