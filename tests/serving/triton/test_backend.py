# SPDX-License-Identifier: Apache-2.0
"""Shared code of the Python models: word tensors, text pieces, and request inputs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.serving.triton.artifact import make_tokenizer
from tests.serving.triton.fakes import Request, make_pb_utils
from trtspec.checkpoints.tokenizer import Tokenizer
from trtspec.core.errors import EngineFailed, TrtspecError
from trtspec.engine.generation.text import TextPieces, TextStream
from trtspec.serving.triton.python_models.grpc_client import ModelError
from trtspec.serving.triton.python_models.responses import failure, parse_error_id
from trtspec.serving.triton.python_models.tensors import (
    NEUTRAL_FIELDS,
    NEUTRAL_SCORING,
    RequestTensors,
    Settings,
    check_unsupported,
    decode_token_lists,
    encode_token_lists,
    read_sampling,
)


def inputs(**tensors) -> RequestTensors:
    return RequestTensors(make_pb_utils(), Request(**tensors))


def metaspace_tokenizer(root: Path) -> Path:
    """Save a SentencePiece-like tokenizer: encoding adds a space before the first word, and decoding drops it."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    symbols = ["▁", *"abcdeHWlorn!.", *(f"<0x{byte:02X}>" for byte in range(256))]
    vocab = {symbol: index for index, symbol in enumerate(symbols)} | {"▁W": 300, "▁a": 301}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[("▁", "W"), ("▁", "a")], byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    root.mkdir(parents=True)
    tokenizer.save(str(root / "tokenizer.json"))
    return root


@pytest.fixture(scope="module", params=[make_tokenizer, metaspace_tokenizer])
def tokenizer(request, tmp_path_factory) -> Tokenizer:
    return Tokenizer(request.param(tmp_path_factory.mktemp("tokenizer") / "t"))


def test_word_list_tensor_has_the_nvidia_layout() -> None:
    assert encode_token_lists([[5, 6], [7]]).tolist() == [[5, 6, 7], [2, 3, -1]]
    assert encode_token_lists([]).tolist() == [[0], [-1]]


@pytest.mark.slow
@given(st.lists(st.lists(st.integers(0, 1000), min_size=1)))
def test_word_list_tensor_round_trips(words: list[list[int]]) -> None:
    assert decode_token_lists(encode_token_lists(words)) == words


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        ([[1, 2]], r"the shape \[1, 2\], expected \[2, n\]"),
        ([[1, 2], [3, -1]], r"the ends \[3\], expected increasing numbers up to 2"),
        ([[1, 2], [2, 1]], r"the ends \[2, 1\], expected increasing"),
    ],
)
def test_invalid_word_list_tensor_is_rejected(tensor, message: str) -> None:
    with pytest.raises(TrtspecError, match=message):
        decode_token_lists(np.array(tensor))


@pytest.mark.parametrize("text", ["Hello World, a b  c", " leading", "naïve 東京 😀 end", "a\n\nb"])
@pytest.mark.parametrize("cut", [1, 2, 3, 5])
def test_streamed_pieces_concatenate_to_the_whole_text(tokenizer: Tokenizer, text: str, cut: int) -> None:
    stream, ids = TextStream(tokenizer), tokenizer.encode(text)
    shown = [stream.add(ids[start : start + cut], last=start + cut >= len(ids)) for start in range(0, len(ids), cut)]
    assert "".join(piece for piece, _ in shown) == tokenizer.decode(ids)
    assert sum(count for _, count in shown) == len(ids)


def test_incomplete_character_is_buffered_until_complete_or_end(tmp_path: Path) -> None:
    tokenizer = Tokenizer(make_tokenizer(tmp_path / "t"))
    first, second = tokenizer.encode("é")
    stream = TextStream(tokenizer)
    assert stream.add([first], last=False) == ("", 0)
    assert stream.add([second, first], last=False) == ("é", 2)
    assert stream.add([], last=True) == ("\N{REPLACEMENT CHARACTER}", 1)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, (0.0, 0, 1.0, 0)),
        ({"x_top_k": 1, "seed": 7}, (0.0, 1, 1.0, 7)),
        ({"x_top_k": 40}, (1.0, 40, 1.0, 0)),
        ({"x_top_p": 0.5}, (1.0, 0, 0.5, 0)),
        ({"x_top_p": 0.0, "temperature": 0.25}, (0.0, 0, 1.0, 0)),
        ({"x_top_p": 1.0, "temperature": 0.25}, (0.25, 0, 1.0, 0)),
        ({"temperature": -1.0}, (-1.0, 0, 1.0, 0)),
    ],
)
def test_sampling_is_greedy_unless_requested_otherwise(given, expected) -> None:
    assert tuple(read_sampling(inputs(**given), "x_").values()) == expected


@pytest.mark.parametrize("word", ["a", " World", "World", "\n", "\n\n", ". a", "東", "!"])
def test_stop_word_round_trips_through_tokens(tokenizer: Tokenizer, word: str) -> None:
    pieces = TextPieces(tokenizer)
    assert pieces.decode(pieces.encode(word)) == word


def test_stop_word_that_cannot_be_encoded_is_an_error(tmp_path: Path) -> None:
    from tokenizers import Tokenizer as Backend
    from tokenizers import models

    Backend(models.BPE(vocab={"a": 0}, merges=[])).save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(TrtspecError, match="the stop word 'é' cannot be encoded with the tokens of this model"):
        TextPieces(Tokenizer(tmp_path)).encode("é")


@pytest.mark.parametrize(("name", "accepted"), (NEUTRAL_FIELDS | NEUTRAL_SCORING).items())
def test_unsupported_fields_accept_only_neutral_values(name: str, accepted: tuple[float, ...]) -> None:
    for value in accepted:
        check_unsupported(inputs(**{name: value}), "X")
    check_unsupported(inputs(), "X")
    with pytest.raises(TrtspecError, match=f"{name} 7 is not supported by X"):
        check_unsupported(inputs(**{name: 7}), "X")


def test_unsupported_field_error_names_the_value() -> None:
    with pytest.raises(TrtspecError, match=r"repetition_penalty 1.2 is not supported by X"):
        check_unsupported(inputs(repetition_penalty=np.array([[1.2]], np.float32)), "X")


def test_bad_words_and_embedding_bias_are_rejected_unless_empty() -> None:
    check_unsupported(
        inputs(bad_words_list=encode_token_lists([])[None], embedding_bias=np.zeros((1, 0), np.float32)), "X"
    )
    with pytest.raises(TrtspecError, match="bad_words is not supported by X"):
        check_unsupported(inputs(bad_words_list=encode_token_lists([[3]])[None]), "X")
    with pytest.raises(TrtspecError, match="embedding_bias is not supported by X"):
        check_unsupported(inputs(embedding_bias_weights=np.array([[2.0]], np.float32)), "X")


def test_request_tensors_with_wrong_shape_or_encoding_are_rejected() -> None:
    with pytest.raises(TrtspecError, match="x has 2 rows: send one prompt per request"):
        inputs(x=np.zeros((2, 1))).array("x")
    with pytest.raises(TrtspecError, match="x has 3 values, expected one"):
        inputs(x=np.zeros((1, 3))).scalar("x")
    with pytest.raises(TrtspecError, match="x is not UTF-8 text"):
        inputs(x=np.array([[b"\xff"]], dtype=object)).texts("x")
    assert inputs(x=np.array([[b"a", b""]], dtype=object)).texts("x") == ["a"]


@pytest.mark.parametrize(
    "config",
    [
        {"parameters": {"max_queue_size": {"string_value": "7"}}, "dynamic_batching": {}},
        {"parameters": {}, "dynamic_batching": {"default_queue_policy": {"max_queue_size": 7}}},
    ],
    ids=["counted by the model", "an artifact of before"],
)
def test_max_queue_size_is_read_from_new_and_old_artifacts(config: dict[str, object]) -> None:
    assert Settings({"model_config": json.dumps(config), "model_repository": "/m"}).max_queue_size == 7


def test_missing_parameter_error_names_the_parameter_and_the_file() -> None:
    settings = Settings({"model_config": '{"parameters": {}}', "model_repository": "/m"})
    with pytest.raises(TrtspecError, match="parameter 'draft_len' is missing") as caught:
        settings.parameter("draft_len")
    assert caught.value.where == "/m/config.pbtxt"


def test_internal_error_is_logged_and_reported_to_the_client_by_id() -> None:
    pb_utils = make_pb_utils()
    response = failure(pb_utils, ZeroDivisionError("oops"))
    assert response.error.code == "internal"
    fault = parse_error_id(response.error.message)
    assert response.error.message == f"internal error {fault}: see the server's log under this id"
    assert pb_utils.logged[0].startswith(f"internal error {fault}: ")
    assert "ZeroDivisionError: oops" in pb_utils.logged[0]
    passed_on = failure(pb_utils, ModelError(response.error.message, "INTERNAL", where="tensorrt_llm"))
    assert (passed_on.error.message, len(pb_utils.logged)) == (response.error.message, 1)
    failed = failure(pb_utils, EngineFailed("no room at 0x7f"))
    assert (failed.error.code, "0x7f" in failed.error.message) == ("internal", False)
    assert "no room at 0x7f" in pb_utils.logged[1]
    assert failure(pb_utils, TrtspecError("too long")).error.code == "invalid"
