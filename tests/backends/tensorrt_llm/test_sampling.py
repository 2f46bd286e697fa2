# SPDX-License-Identifier: Apache-2.0
"""The engines that support sampling."""

from __future__ import annotations

from typing import Any

import pytest

from tests.backends.contexts import make_context
from trtspec.backends.tensorrt_llm.specs import is_greedy_only


@pytest.mark.parametrize(
    ("method", "options", "greedy_only"),
    [
        ("none", {}, False),
        ("draft_target", {}, False),
        ("ngram", {}, False),
        ("medusa", {}, True),
        ("eagle", {}, True),
        ("lookahead", {}, True),
        ("redrafter", {"greedy": True}, True),
        ("redrafter", {"greedy": False}, False),
    ],
)
def test_greedy_only_depends_on_method_and_options(method: str, options: dict[str, Any], greedy_only: bool) -> None:
    case = make_context(speculation__method=method, speculation__options=options)
    assert is_greedy_only(case) is greedy_only
