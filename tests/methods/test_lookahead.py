# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

import pytest

from trtspec.backends.tensorrt_llm.specs import modes
from trtspec.core.errors import TrtspecError
from trtspec.methods.base import DraftShape
from trtspec.methods.lookahead import METHOD, LookaheadOptions

OFF = {"window": 1, "ngram": 1, "verification": 0}


def test_defaults_match_tensorrt_llm() -> None:
    """The defaults of LookaheadDecodingConfig, which are from executor.h."""
    assert METHOD.options().model_dump() == {
        "window": 4, "verification": 4, "ngram": 3,
    }  # fmt: skip
    assert modes()["lookahead"] == "lookahead_decoding"


@pytest.mark.parametrize(
    ("window", "ngram", "guesses", "draft_shape"),
    [
        (7, 7, 7, DraftShape(6, 83)),  # the example of TensorRT-LLM's examples/lookahead
        (4, 3, 4, DraftShape(2, 15)),
        (1, 1, 0, DraftShape(0, 0)),
        (2, 2, 1, DraftShape(1, 2)),
        (1, 5, 0, DraftShape(4, 3)),
        (60, 8, 60, DraftShape(7, 839)),  # the defaults of the authors' implementation
    ],
)
def test_draft_shape_matches_the_tensorrt_llm_reservation(
    window: int, ngram: int, guesses: int, draft_shape: DraftShape
) -> None:
    options = {"window": window, "ngram": ngram, "verification": guesses}
    assert METHOD.draft_shape(METHOD.parse(options), 0) == draft_shape


TURNED_OFF = "ngram 1 turns lookahead off and requires window 1 and verification 0"


@pytest.mark.parametrize(
    ("options", "where", "message"),
    [
        ({"window": 0}, "window", "must be at least 1"),
        ({"verification": -1}, "verification", "must be at least 0"),
        ({"ngram": 33}, "ngram", "must be at most 32"),
        ({"ngram": 1}, "ngram", TURNED_OFF),
        (OFF | {"window": 2}, "ngram", TURNED_OFF),
        (OFF | {"verification": 1}, "ngram", TURNED_OFF),
        ({"windows": 4}, "windows", "unknown key"),
    ],
    ids=str,
)
def test_invalid_sizes_are_rejected_with_their_position(options: dict[str, Any], where: str, message: str) -> None:
    with pytest.raises(TrtspecError) as error:
        METHOD.parse(options)
    assert error.value.where == f"speculation.options.{where}"
    assert error.value.message == message


def test_lookahead_can_be_turned_off() -> None:
    assert METHOD.parse(OFF) == LookaheadOptions(**OFF)


def test_lookahead_has_no_draft_len_setting() -> None:
    assert not METHOD.draft_lens
