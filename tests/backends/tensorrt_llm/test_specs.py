# SPDX-License-Identifier: Apache-2.0
"""The sizes of engines, and their consequences for prompts."""

from __future__ import annotations

from typing import Any

import pytest

from tests.backends.contexts import make_context, make_pair
from trtspec.backends.tensorrt_llm.specs import engine_specs


@pytest.mark.parametrize(
    ("method", "built"),
    [
        ("none", 2048),
        ("ngram", 2048 + 8),
        ("medusa", 2048 + 63),
        ("eagle", 2048 + 25 + 5),  # EAGLE's mc_sim_7b_63 has a depth of five tokens
        ("redrafter", 2048 + 5 * 5),
    ],
)
def test_built_sequence_length_includes_the_draft_tokens(method: str, built: int) -> None:
    (spec,) = engine_specs(make_context("vicuna-7b", speculation__method=method))
    assert (spec.max_seq_len, spec.built_seq_len) == (2048, built)


def test_draft_engine_does_not_speculate() -> None:
    target, draft = engine_specs(make_pair(speculation__draft_len=6))
    assert (target.mode, target.draft_tokens, target.built_seq_len) == ("draft_tokens_external", 6, 2054)
    assert (draft.mode, draft.draft_tokens, draft.built_seq_len) == ("", 0, 2048)
    assert (draft.path, draft.gpu_ids) == ("speculation.draft", (0,))


@pytest.mark.parametrize(
    ("method", "changes", "longest"),
    [
        ("none", {}, 2047),
        ("ngram", {}, 2055),
        ("medusa", {}, 512),
        ("none", {"target__quantization": {"kv_cache": "fp8"}}, 512),  # no paged context attention, no chunks
    ],
)
def test_longest_prompt_is_max_num_tokens_unless_prompts_are_chunked(
    method: str, changes: dict[str, Any], longest: int
) -> None:
    (spec,) = engine_specs(make_context("vicuna-7b", speculation__method=method, engine__max_num_tokens=512, **changes))
    assert spec.longest_prompt == longest


@pytest.mark.parametrize(
    ("method", "tokens", "chunks"),
    [
        ("none", 512, True),
        ("none", 8192, True),
        ("ngram", 512, True),
        ("ngram", 2055, False),
        ("lookahead", 512, False),
    ],
)
def test_prompt_chunking_depends_on_method_and_max_num_tokens(method: str, tokens: int, chunks: bool) -> None:
    (spec,) = engine_specs(make_context(speculation__method=method, engine__max_num_tokens=tokens))
    assert spec.chunks_prompts is chunks
