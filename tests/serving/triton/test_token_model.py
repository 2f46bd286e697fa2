# SPDX-License-Identifier: Apache-2.0
"""Shared code of the token-level models: the text of a request, and the ids of its response."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.serving.triton.artifact import make_tokenizer
from tests.serving.triton.fakes import Request, make_pb_utils
from trtspec.checkpoints.tokenizer import Tokenizer
from trtspec.engine.generation.request import Scores, Stats
from trtspec.serving.triton.python_models.tensors import RequestTensors, encode_token_lists
from trtspec.serving.triton.python_models.token_io import TokenReader, UnsentTokens

SOME = {
    "prompt_tokens": 5,
    "new_tokens": 3,
    "drafted": 8,
    "accepted": 2,
    "draft_steps": 4,
    "accepted_by_position": (2,),
}
NONE = {"prompt_tokens": 5, "new_tokens": 3, "drafted": 0, "accepted": 0, "draft_steps": 0, "accepted_by_position": ()}


def inputs(**tensors) -> RequestTensors:
    return RequestTensors(make_pb_utils(), Request(**tensors))


@pytest.fixture
def tokenizer(tmp_path: Path) -> Tokenizer:
    return Tokenizer(make_tokenizer(tmp_path / "t"))


def test_token_reader_reads_prompt_length_end_ids_and_stop_words(tokenizer: Tokenizer) -> None:
    words = encode_token_lists([tokenizer.encode(" é"), tokenizer.encode("\n")])[None]
    asked = inputs(
        input_ids=np.array([[5, 6, 0]], np.int32),
        input_lengths=2,
        request_output_len=9,
        end_id=7,
        stop_words_list=words,
    )
    assert TokenReader(tokenizer).read(asked) == {
        "prompt_ids": (5, 6),
        "max_new_tokens": 9,
        "end_ids": (7,),
        "stop": (" é", "\n"),
    }


@pytest.mark.parametrize(("asked", "expected"), [(None, "own"), ("own", "own"), (-1, ()), (9, (9,))])
def test_tokenizer_end_id_stands_for_all_end_ids(asked, expected, tokenizer: Tokenizer) -> None:
    text = {"input_ids": np.array([[5]], np.int32), "input_lengths": 1, "request_output_len": 9}
    if asked is not None:
        text["end_id"] = tokenizer.end_ids[0] if asked == "own" else asked
    found = TokenReader(tokenizer).read(inputs(**text))
    assert found["end_ids"] == (tokenizer.end_ids if expected == "own" else expected)
    assert found["stop"] == ()


def test_unsent_tokens_are_sent_once_and_empty_output_is_a_pad_id() -> None:
    unsent = UnsentTokens(inputs(pad_id=3, exclude_input_in_output=False), (1, 2), streaming=True)
    unsent.add((4,))
    unsent.add((5,), Scores(np.ones((1, 2), np.float32)))
    first, second = ({name: array.tolist() for name, array in unsent.take(Stats(**counts))} for counts in (SOME, NONE))
    assert first == {
        "output_ids": [[[1, 2, 4, 5]]],
        "sequence_length": [[4]],
        "generation_logits": [[[[1.0, 1.0]]]],
        "continuation": [[False]],
        "sequence_index": [[0]],
        "acceptance_rate": [[0.25]],
        "total_accepted_draft_tokens": [[2]],
        "total_draft_tokens": [[8]],
        "num_draft_steps": [[4]],
        "accepted_by_position": [[2]],
        "num_input_tokens": [[5]],
        "num_output_tokens": [[3]],
    }
    assert (second["output_ids"], second["sequence_length"], second["continuation"]) == ([[[3]]], [[0]], [[True]])
    assert (second["acceptance_rate"], second["accepted_by_position"]) == ([[0.0]], [[0]])
    assert "generation_logits" not in second
