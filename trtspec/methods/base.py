# SPDX-License-Identifier: Apache-2.0
"""What a speculation method has to say about itself, whatever engine runs it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Method:
    """One speculation method; a module of this folder joins by defining it as `METHOD`.

    `drafts_with` says what the recipe's `speculation.draft` has to be ("nothing" or "model"), `draft_lens` the range
    of `draft_len` it takes (empty for a method without), `options` the keys of `speculation.options` it knows, and
    `engines` the backends that can run it.
    """

    summary: str
    drafts_with: str
    draft_lens: range
    default_draft_len: int
    options: tuple[str, ...]
    engines: tuple[str, ...]
