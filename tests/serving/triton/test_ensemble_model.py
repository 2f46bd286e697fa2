# SPDX-License-Identifier: Apache-2.0
"""The ensemble model and its token-level model without a server: passed tensors, responses and disconnections."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.serving.triton.answering import WAIT_S, Models, Response, answering, response
from tests.serving.triton.artifact import make_tokenizer
from tests.serving.triton.fakes import FINAL, Request, load_model, make_pb_utils, model_args
from trtspec.checkpoints.tokenizer import Tokenizer
from trtspec.core.errors import Overloaded
from trtspec.core.paths import model_repository_dir
from trtspec.serving.triton.python_models.grpc_client import LocalServerClient
from trtspec.serving.triton.python_models.interruptions import CancellationWatcher
from trtspec.serving.triton.python_models.responses import REQUESTS_PER_PLACE, RequestLimit, parse_error_id

TEXT = "né!"


@pytest.fixture(scope="module")
def server() -> Iterator[Models]:
    with answering() as models:
        yield models


@pytest.fixture
def models(server: Models) -> Models:
    server.made, server.waits, server.closes_early, server.serve = [], False, False, pieces
    return server


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    return make_tokenizer(tmp_path_factory.mktemp("artifact") / "tokenizer")


def ids_of(text: str, *, continues: bool, **outputs: Any) -> Response:
    ids = [byte_id(byte) for byte in text.encode()]
    return response(output_ids=[[ids]], sequence_length=[[len(ids)]], continuation=[[continues]], **outputs)


def byte_id(byte: int) -> int:
    """Return the token of the tests' tokenizer for one byte."""
    from tokenizers import pre_tokenizers

    printed = [*range(33, 127), *range(161, 173), *range(174, 256)]
    symbol = chr(byte) if byte in printed else chr(256 + [one for one in range(256) if one not in printed].index(byte))
    return 1 + sorted(pre_tokenizers.ByteLevel.alphabet()).index(symbol)


def pieces(model: str, inputs: dict[str, np.ndarray]) -> list[Response]:
    counts = {"num_output_tokens": [[3]], "total_draft_tokens": [[7]]}
    return [ids_of("n", continues=False, **counts), ids_of("é!", continues=True, **counts)]


def start(
    root: Path, models: Models, *, decoupled: bool = True, max_batch_size: int = 8, **changes: str
) -> tuple[Any, Any]:
    pb_utils = make_pb_utils()
    module = load_model("ensemble", pb_utils)
    module.local_server_client = lambda: LocalServerClient(models.address)
    args = model_args(model_repository_dir() / "ensemble", tokenizer_dir=str(root), **changes)
    if not decoupled:
        args["model_config"] = args["model_config"].replace('"decoupled": true', '"decoupled": false')
    args["model_config"] = args["model_config"].replace('"max_batch_size": 8', f'"max_batch_size": {max_batch_size}')
    model = module.TritonPythonModel()
    model.initialize(args)
    return model, pb_utils


def ask(text: str = "Hé", **inputs: Any) -> Request:
    return Request(
        text_input=np.array([[text.encode()]], dtype=object), max_tokens=np.array([[20]], np.int32), **inputs
    )


def run(model: Any, *requests: Request) -> list[list[tuple[Any, bool]]]:
    assert model.execute(list(requests)) is None
    model.finalize()
    return [[(answer, flags == FINAL) for answer, flags in request.sender.sent] for request in requests]


def test_text_logit_edits_are_translated_to_token_ids(root: Path, models: Models) -> None:
    """Words with a weight become a bias of their tokens; NVIDIA's clients always send empty words."""
    model, _ = start(root, models)
    words = {
        "bad_words": np.array([[b"ab"]], dtype=object),
        "embedding_bias_words": np.array([[b"a", b"ba"]], dtype=object),
        "embedding_bias_weights": np.array([[1.5, 2.0]], np.float32),
        "presence_penalty": np.array([[0.5]], np.float32),
    }
    empty = {
        "embedding_bias_words": np.zeros((1, 0), dtype=object),
        "embedding_bias_weights": np.zeros((1, 0), np.float32),
    }
    uneven = empty | {"embedding_bias_weights": np.array([[1.0]], np.float32)}
    *_, [(refused, _)] = run(model, ask(**words), ask(**empty), ask(**uneven))
    edited, plain = sorted((asked.inputs for asked in models.made), key=lambda inputs: "embedding_bias" not in inputs)
    a, b = (byte_id(ord(letter)) for letter in "ab")
    assert edited["bad_words_list"].tolist() == [[[a, b], [2, -1]]]
    assert edited["presence_penalty"].tolist() == [[0.5]]
    [bias] = edited["embedding_bias"]
    assert {int(token): float(bias[token]) for token in np.flatnonzero(bias)} == {a: 3.5, b: 2.0}
    assert "embedding_bias" not in plain
    assert "embedding_bias_words has 0 entries, but embedding_bias_weights has 1" in refused.error.message


def test_text_request_is_translated_to_token_ids(root: Path, models: Models) -> None:
    stop = np.array([[b"!", b""]], dtype=object)
    model, _ = start(root, models)
    [sent] = run(
        model, ask(stop_words=stop, seed=np.array([[5]], np.uint64), num_draft_tokens=np.array([[0]], np.int32))
    )
    [asked] = models.made
    assert asked.model == "tensorrt_llm"
    assert {"output_ids", "sequence_length", "continuation"} <= {*asked.outputs}
    assert {name: array.tolist() for name, array in asked.inputs.items()} == {
        "input_ids": [Tokenizer(root).encode("Hé")],
        "input_lengths": [[3]],
        "request_output_len": [[20]],
        "end_id": [[0]],
        "pad_id": [[0]],
        "stop_words_list": [[[byte_id(ord("!"))], [1]]],
        "bad_words_list": [[[0], [-1]]],
        "exclude_input_in_output": [[True]],
        "seed": [[5]],
        "num_draft_tokens": [[0]],
    }
    texts = [answer.outputs["text_output"].item().decode() for answer, _ in sent if answer]
    assert "".join(texts) == TEXT
    assert [final for _, final in sent] == [False, False, True]
    assert {*sent[1][0].outputs} == {"text_output", "sequence_length", "num_output_tokens", "total_draft_tokens"}


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("the engine says no", "invalid"),
        ("[request id: <id_unknown>] Exceeds maximum queue size", "unavailable"),
        ("internal error 0123456789ab: see the server's log under this id", "internal"),
        ("Request for unknown model: 'tensorrt_llm' is not found", "not found"),
        ("the request was cancelled", "cancelled"),
    ],
)
def test_engine_error_message_is_forwarded_and_determines_the_status(
    root: Path, models: Models, words: str, code: str
) -> None:
    models.serve = lambda *_: [*pieces("", {})[:1], Response({}, words)]
    model, _ = start(root, models)
    [sent] = run(model, ask())
    assert [answer.outputs["text_output"].item() for answer, _ in sent[:-1]] == [b"n"]
    assert (sent[-1][0].error.message, sent[-1][0].error.code, sent[-1][1]) == (words, code, True)


def test_engine_internal_error_is_logged_and_reported_by_id(root: Path, models: Models) -> None:
    models.serve = lambda *_: [Response({}, "Stub process 'tensorrt_llm_0_0' is not healthy.")]
    model, pb_utils = start(root, models)
    [[(answer, _)]] = run(model, ask())
    assert answer.error.code == "internal"
    assert "Stub" not in answer.error.message
    fault = parse_error_id(answer.error.message)
    assert any(fault in line and "is not healthy" in line for line in pb_utils.logged)


def test_stream_closed_before_the_last_response_is_an_error(root: Path, models: Models) -> None:
    models.closes_early = True
    [sent] = run(start(root, models)[0], ask())
    assert sent[-1][0].error.message == "the server closed the stream before the last response"


@pytest.mark.slow
@pytest.mark.parametrize("decoupled", [True, False])
def test_client_disconnect_cancels_the_engine_request(root: Path, models: Models, decoupled: bool) -> None:
    """The model need not respond first; its first token may take long."""
    model, _ = start(root, models, decoupled=decoupled)
    models.serve, models.waits = lambda *_: [], True
    request = ask()
    leave = threading.Timer(0.3, lambda: [setattr(each, "cancelled", True) for each in (request, request.sender)])
    leave.start()
    answers = model.execute([request])
    model.finalize()
    leave.join(WAIT_S)
    assert models.made[0].left.wait(1.0)
    [answer] = answers or [request.sender.sent[-1][0]]
    assert answer.error.code == "cancelled"


def test_request_without_decoupling_returns_the_whole_response(root: Path, models: Models) -> None:
    models.serve = lambda *_: [ids_of(TEXT, continues=False)]
    model, _ = start(root, models, decoupled=False)
    [answer] = model.execute([ask()])
    model.finalize()
    assert answer.outputs["text_output"].item().decode() == TEXT


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x" * 1000, "text_input has 1,000 characters; the limit of 50 tokens is at most"),
        ("", "text_input is empty"),
    ],
)
def test_invalid_prompt_text_is_rejected_before_the_engine_is_called(
    root: Path, models: Models, monkeypatch, text: str, message: str
) -> None:
    tokenized: list[str] = []
    model, _ = start(root, models, max_input_len="50")
    encode = model.reader._tokenizer.encode
    monkeypatch.setattr(Tokenizer, "encode", lambda self, text, *_: tokenized.append(text) or encode(text))
    [sent] = run(model, ask(text))
    assert sent[0][0].error.message.startswith(message)
    assert (sent[0][0].error.code, models.made, tokenized) == ("invalid", [], [text] if not text else [])


def test_request_without_a_free_slot_blocks_until_one_is_released(root: Path, models: Models) -> None:
    going = threading.Event()

    def serve(model: str, inputs: dict[str, np.ndarray]) -> list[Response]:
        going.wait(WAIT_S)
        return pieces(model, inputs)

    models.serve = serve
    model, _ = start(root, models, max_batch_size=1)
    model.execute([ask() for _ in range(REQUESTS_PER_PLACE)])
    with ThreadPoolExecutor(1) as executing:
        third = executing.submit(model.execute, [ask()])
        assert not wait({third}, 0.2).done
        going.set()
        third.result(WAIT_S)
    model.finalize()


def test_request_limit_rejects_requests_beyond_the_queue_size() -> None:
    room = RequestLimit(max_batch_size=1, max_queue_size=1)
    with room, room:
        with room, pytest.raises(Overloaded, match="the queue is full: 1 requests wait"), room:
            pass
        with room:
            pass


@pytest.mark.slow
def test_finished_request_is_no_longer_polled_for_cancellation() -> None:
    looked, left = threading.Event(), threading.Event()
    departures = CancellationWatcher()
    watch = departures.watch(lambda: looked.set() or False, left.set)
    assert looked.wait(WAIT_S)
    watch.close()
    looked.clear()
    assert not looked.wait(0.5)
    assert not left.is_set()
    departures.close()


def test_special_tokens_are_omitted_on_request(root: Path, models: Models, monkeypatch) -> None:
    asked: list[bool] = []
    model, _ = start(root, models)
    encode = model.reader._tokenizer.encode
    monkeypatch.setattr(Tokenizer, "encode", lambda self, text, special=None: asked.append(special) or encode(text))
    run(model, ask(), ask(add_special_tokens=np.array([[False]])))
    assert sorted(each for each in asked if each is not None) == [False, True]
