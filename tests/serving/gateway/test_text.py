# SPDX-License-Identifier: Apache-2.0
"""Stop strings at any division of the text, and draft counts in vLLM's format."""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.serving.triton.artifact import make_tokenizer
from trtspec.checkpoints.tokenizer import Tokenizer
from trtspec.engine.generation.text import TextPieces
from trtspec.serving.gateway.generation import (
    ChatFormat,
    CompletionFormat,
    Delta,
    StopCutter,
    TextGeneration,
    TokenGeneration,
    TokenLogprob,
    speculation_metrics,
)
from trtspec.serving.gateway.parameters import RequestParameters, read_parameters


def asked(**body: object) -> RequestParameters:
    return read_parameters({"model": "m", "prompt": "x", **body}, chat=False)


def cut(pieces: list[str], stops: list[str]) -> tuple[str, bool]:
    cutter, shown = StopCutter(stops), ""
    for place, piece in enumerate(pieces):
        shown += cutter.add(piece, last=place == len(pieces) - 1)
        if cutter.stopped:
            break
    return shown, cutter.stopped


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "stops", "expected"),
    [
        ("one END two", ["END"], ("one ", True)),
        ("ababac", ["abac"], ("ab", True)),
        ("aaab", ["aab", "ab"], ("a", True)),
        ("no stop here EN", ["END"], ("no stop here EN", False)),
        ("x\n\ny", ["\n\n", "y"], ("x", True)),
        ("END", ["END"], ("", True)),
        ("abcd", ["abcd", "b"], ("a", True)),  # the one that is complete first
        ("abab", ["ab", "abab", "bab"], ("", True)),
    ],
)
def test_stop_string_is_found_for_any_split_of_the_text(text: str, stops: list[str], expected: object) -> None:
    for places in range(1 << (len(text) - 1)):
        pieces, begun = [], 0
        for at in range(1, len(text)):
            if places >> (at - 1) & 1:
                pieces.append(text[begun:at])
                begun = at
        assert cut([*pieces, text[begun:]], stops) == expected


@pytest.mark.parametrize("step", [1, 2, 3, 5, 8])
@pytest.mark.parametrize(
    ("min_tokens", "shown"), [(0, "xa"), (4, "xa"), (5, "xabcda"), (8, "xabcda"), (9, "xabcdabcd")]
)
def test_stop_strings_before_min_tokens_are_ignored(
    tokenizer: Tokenizer, step: int, min_tokens: int, shown: str
) -> None:
    parameters = asked(max_tokens=64, min_tokens=min_tokens, stop=["bc", "abcdx"])
    text, ids = TokenGeneration(parameters, (1,), tokenizer, TextPieces(tokenizer)), tokenizer.encode("xabcdabcd")
    found, reason = "", None
    for begin in range(0, len(ids), step):
        delta = text.take(response(ids[begin : begin + step]), last=begin + step >= len(ids))
        found, reason = found + delta.text, delta.finish_reason
        if reason:
            break
    assert (found, reason) == (shown, "stop")


def test_only_a_possible_stop_string_prefix_is_buffered() -> None:
    cutter = StopCutter(["END"])
    assert [cutter.add(piece, last=False) for piece in ("a", "bE", "N", "x")] == ["a", "b", "", "ENx"]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer(make_tokenizer(tmp_path_factory.mktemp("bytes") / "tokenizer"))


def response(ids: list[int], **more: bytes) -> dict[str, bytes]:
    return {
        "output_ids": np.array(ids or [0], np.int32).tobytes(),
        "sequence_length": np.array([len(ids)], np.int32).tobytes(),
        **more,
    }


def test_byte_tokens_are_emitted_as_whole_characters(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("né 🙂!")
    text = TokenGeneration(asked(max_tokens=64), (1,), tokenizer, TextPieces(tokenizer))
    deltas = [text.take(response([token]), last=False) for token in ids]
    assert "".join(delta.text for delta in deltas) == "né 🙂!"
    assert "�" not in "".join(delta.text for delta in deltas)
    assert text.take(response([]), last=True) == Delta("", "stop")
    assert text.completion_tokens == len(ids)


def test_finish_reason_is_length_or_stop(tokenizer: Tokenizer) -> None:
    ids, pieces = tokenizer.encode("abc"), TextPieces(tokenizer)
    full = TokenGeneration(asked(max_tokens=3), (1,), tokenizer, pieces)
    assert full.take(response(ids), last=True) == Delta("abc", "length")
    end = tokenizer.end_ids[0]
    told = TokenGeneration(asked(max_tokens=9), (1,), tokenizer, pieces)
    assert told.take(response([*ids, end, *ids]), last=False) == Delta("abc", "stop")
    assert told.completion_tokens == 3
    cut_off = TokenGeneration(asked(max_tokens=3, stop="bc"), (1,), tokenizer, pieces)
    assert cut_off.take(response(ids), last=True) == Delta("a", "stop")


def test_logprobs_cover_only_the_new_tokens(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("ab")
    text = TokenGeneration(asked(max_tokens=9, logprobs=1), (1,), tokenizer, TextPieces(tokenizer))
    told = {
        # includes one from the previous response
        "output_log_probs": np.array([-9.0, -0.5, -1.5], np.float32).tobytes(),
        "top_logprobs": np.array([-0.5, -0.25], np.float32).tobytes(),
        "top_logprob_ids": np.array([ids[0], ids[0]], np.int32).tobytes(),
    }
    found = text.take(response(ids, **told), last=False).logprobs
    assert found == [
        TokenLogprob("a", -0.5, b"a", (TokenLogprob("a", -0.5, b"a"),), 0),
        TokenLogprob("b", -1.5, b"b", (TokenLogprob("a", -0.25, b"a"),), 1),
    ]


@pytest.mark.parametrize("step", [1, 2, 3, 5, 99])
def test_offsets_and_bytes_of_tokens_are_those_of_the_whole_text(tokenizer: Tokenizer, step: int) -> None:
    expected = "n\u00e9 \U0001f642!"
    ids = tokenizer.encode(expected, False)
    text = TokenGeneration(asked(max_tokens=64, logprobs=1), (1,), tokenizer, TextPieces(tokenizer))
    tokens: list[TokenLogprob] = []
    for begin in range(0, len(ids), step):
        part = ids[begin : begin + step]
        scores = np.zeros(len(part), np.float32).tobytes()
        tops = {"top_logprobs": scores, "top_logprob_ids": np.array(part, np.int32).tobytes()}
        tokens += text.take(response(part, output_log_probs=scores, **tops), last=False).logprobs or ()
    assert [token.offset for token in tokens] == [0, 1, 1, 2, 3, 3, 3, 3, 4]
    assert b"".join(token.raw for token in tokens) == expected.encode()
    assert all(token.top == (replace(token, offset=0, top=()),) for token in tokens)
    chunk = json.loads(
        CompletionFormat("m", texts_a_prompt=1, include_usage=False, draft_len=0).chunk(
            0, Delta("", logprobs=tokens[3:5]), first=False
        )[6:]
    )
    assert chunk["choices"][0]["logprobs"]["text_offset"] == [2, 3]
    chat = json.loads(
        ChatFormat("m", texts_a_prompt=1, include_usage=False, draft_len=0).chunk(
            0, Delta("", logprobs=tokens[4:8]), first=False
        )[6:]
    )
    content = chat["choices"][0]["logprobs"]["content"]
    assert [each["bytes"] for each in content] == [[0xF0], [0x9F], [0x99], [0x82]]
    assert [each["top_logprobs"][0]["bytes"] for each in content] == [[0xF0], [0x9F], [0x99], [0x82]]


@pytest.mark.parametrize("own_counts", [True, False])
def test_text_level_generation_uses_the_token_counts_of_the_model(own_counts: bool) -> None:
    text = TextGeneration(asked(max_tokens=5), "x", own_counts=own_counts)

    def says(piece: str, counted: int) -> dict[str, bytes]:
        raw = piece.encode()
        return {
            "text_output": struct.pack("<I", len(raw)) + raw,
            "num_output_tokens": np.array([counted], np.uint32).tobytes(),
            "num_input_tokens": np.array([7], np.uint32).tobytes(),
        }

    assert text.take(says("né", 2), last=False) == Delta("né")
    assert text.take(says("!", 3 if own_counts else 5), last=True) == Delta("!", "length")
    assert (text.completion_tokens, text.prompt_tokens) == (5, 7)


def test_speculation_metrics_use_the_vllm_format(tokenizer: Tokenizer) -> None:
    text = TokenGeneration(asked(max_tokens=9), (1,), tokenizer, TextPieces(tokenizer))
    assert speculation_metrics(text, 3) is None
    counts = {"total_draft_tokens": 12, "total_accepted_draft_tokens": 6, "num_draft_steps": 4}
    raw = {name: np.array([[value]], np.int32).tobytes() for name, value in counts.items()}
    raw["accepted_by_position"] = np.array([[3, 2, 1]], np.int32).tobytes()
    text.take(response([5], **raw), last=True)
    assert speculation_metrics(text, 3) == {
        "mean_acceptance_length": 2.5,
        "draft_acceptance_rate": 0.5,
        "acceptance_histogram": [1, 1, 1, 1],  # number of steps that accepted 0, 1, 2 and 3 tokens
        "num_spec_steps": 4,
        "num_accepted_draft_tokens": 6,
        "num_draft_tokens": 12,
        "num_spec_tokens": 3,
    }


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ((12, 6, 4, (0,)), {"draft_acceptance_rate": 0.5, "num_draft_tokens": 12}),  # without positions: no histogram
        ((0, 6, 4, (4, 2)), {}),  # zeros of engines that do not count drafts are unknown
        ((0, 0, 4, (0,)), {}),
        ((0, 0, -1, (0,)), None),  # steps are unknown
    ],
)
def test_speculation_metrics_omit_unknown_counts(counts: Any, expected: Any, tokenizer: Tokenizer) -> None:
    text = TokenGeneration(asked(max_tokens=9), (1,), tokenizer, TextPieces(tokenizer))
    names = ("total_draft_tokens", "total_accepted_draft_tokens", "num_draft_steps", "accepted_by_position")
    raw = {name: np.array([value], np.int32).tobytes() for name, value in zip(names, counts, strict=True)}
    text.take(response([5], **raw), last=True)
    found = speculation_metrics(text, 3)
    if expected is None:
        assert found is None
        return
    _, accepted, steps, _ = counts
    shared = {"num_spec_steps": steps, "num_accepted_draft_tokens": accepted, "num_spec_tokens": 3}
    assert found == {"mean_acceptance_length": 1 + accepted / steps, **shared, **expected}
