# SPDX-License-Identifier: Apache-2.0
"""Validation of requests: every invalid value is named."""

from __future__ import annotations

import numpy as np
import pytest

from trtspec.core.errors import TrtspecError
from trtspec.engine.generation.request import EngineRequest, SamplingOptions, check_request
from trtspec.engine.settings import EngineSettings

SETTINGS = EngineSettings(max_seq_len=6, max_input_len=4)
NO_LOGITS = np.zeros((2, 5), np.float32)


def with_one(value: float) -> np.ndarray:
    """Return draft logits with one different value."""
    logits = NO_LOGITS.copy()
    logits[1, 3] = value
    return logits


@pytest.mark.parametrize("logits", [None, NO_LOGITS, with_one(-np.inf)], ids=["none", "finite", "masked"])
def test_valid_request_is_accepted(logits: np.ndarray | None) -> None:
    asked = EngineRequest((1, 2, 3, 4), 2, stop=("a",), draft_ids=(0, 4), draft_logits=logits)
    check_request(asked, SETTINGS, vocab_size=5, has_tokenizer=True)


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (EngineRequest((), 1), "the prompt is empty"),
        (EngineRequest((5,), 1), "the prompt has a token id outside 0..4"),
        (EngineRequest((-1,), 1), "the prompt has a token id outside 0..4"),
        (EngineRequest((1,) * 5, 1), "the prompt has 5 tokens, expected at most 4 (engine.max_input_len)"),
        (EngineRequest((1,), 6), "prompt and max_tokens are 7 tokens together, at most 6 fit (engine.max_seq_len)"),
        (EngineRequest((1,), 0), "max_tokens is 0, expected at least 1"),
        (EngineRequest((1,), 1, draft_len=-1), "the draft length is -1, expected 0 or more"),
        (EngineRequest((1,), 1, SamplingOptions(float("inf"))), "temperature is inf, expected 0 or more"),
        (EngineRequest((1,), 1, SamplingOptions(top_p=1.5)), "top_p is 1.5, expected more than 0 and at most 1"),
        (EngineRequest((1,), 1, SamplingOptions(seed=1 << 64)), "seed is 18446744073709551616, expected 0 to 2^64 - 1"),
        (EngineRequest((1,), 1, stop=("a",)), "stop texts need the engine to have a tokenizer"),
    ],
)
def test_invalid_request_is_rejected_with_the_reason(request_: EngineRequest, message: str) -> None:
    with pytest.raises(TrtspecError) as refused:
        check_request(request_, SETTINGS, vocab_size=5, has_tokenizer=False)
    assert str(refused.value) == message


@pytest.mark.parametrize(
    ("ids", "logits", "message"),
    [
        ((1, 5), None, "the draft has a token id outside 0..4"),
        ((-1,), None, "the draft has a token id outside 0..4"),
        ((1,), NO_LOGITS, "draft logits are 2 x 5, expected 1 x 5: tokens and vocabulary"),
        ((), NO_LOGITS, "draft logits are 2 x 5, expected 0 x 5: tokens and vocabulary"),
        ((1, 2), NO_LOGITS[:, :4], "draft logits are 2 x 4, expected 2 x 5: tokens and vocabulary"),
        ((1, 2), NO_LOGITS[0], "draft logits are 5, expected 2 x 5: tokens and vocabulary"),
        ((1, 2), with_one(np.nan), "a row of draft logits has NaN, infinity or no finite value"),
        ((1, 2), with_one(np.inf), "a row of draft logits has NaN, infinity or no finite value"),
        ((1, 2), NO_LOGITS - np.inf, "a row of draft logits has NaN, infinity or no finite value"),
    ],
)
def test_invalid_external_draft_is_rejected_with_the_reason(
    ids: tuple[int, ...], logits: np.ndarray | None, message: str
) -> None:
    with pytest.raises(TrtspecError) as refused:
        check_request(
            EngineRequest((1,), 5, draft_ids=ids, draft_logits=logits), SETTINGS, vocab_size=5, has_tokenizer=False
        )
    assert str(refused.value) == message
