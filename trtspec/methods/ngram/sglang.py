# SPDX-License-Identifier: Apache-2.0
"""Prompt lookup in SGLang, whose tree is a chain with a breadth of 1."""

from __future__ import annotations

from trtspec.backends.sglang.versions import SglangMethod
from trtspec.methods.base import DraftShape
from trtspec.methods.ngram import NgramOptions


def _fields(options: NgramOptions, shape: DraftShape) -> dict[str, int]:
    breadth = {f"speculative_ngram_{end}_bfs_breadth": 1 for end in ("min", "max")}
    # the paths of the tree contain the match and the draft tokens
    return {**breadth, "speculative_ngram_max_trie_depth": options.max_match + shape.max_depth}


METHOD = SglangMethod("NGRAM", _fields)
