# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

import pytest

from trtspec.backends.tensorrt_llm.specs import modes
from trtspec.core.errors import TrtspecError
from trtspec.methods.base import DraftShape
from trtspec.methods.ngram import METHOD, NgramOptions


def test_ngram_defaults_match_the_expected_values() -> None:
    assert METHOD.options() == NgramOptions(min_match=2, max_match=16)
    assert METHOD.default_draft_len == 8
    assert modes()["ngram"] == "draft_tokens_external"
    assert METHOD.draft_shape(METHOD.options(), 8) == DraftShape(max_depth=8, max_tokens=8)


@pytest.mark.parametrize(
    ("options", "where", "message"),
    [
        ({"min_match": 0}, "min_match", "must be at least 1"),
        ({"max_match": 65}, "max_match", "must be at most 64"),
        ({"min_match": 5, "max_match": 4}, "max_match", "max_match 4 is less than min_match 5"),
        ({"min_match": 17}, "max_match", "max_match 16 is less than min_match 17"),
        ({"min_match": True}, "min_match", "expected a whole number"),
        ({"most": 4}, "most", "unknown key"),
    ],
    ids=str,
)
def test_options_out_of_range_are_rejected_with_their_position(
    options: dict[str, Any], where: str, message: str
) -> None:
    with pytest.raises(TrtspecError) as error:
        METHOD.parse(options)
    assert error.value.where == f"speculation.options.{where}"
    assert error.value.message == message


def test_equal_match_bounds_are_accepted() -> None:
    assert METHOD.parse({"min_match": 4, "max_match": 4}) == NgramOptions(min_match=4, max_match=4)
