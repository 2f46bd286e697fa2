# SPDX-License-Identifier: Apache-2.0
"""The repository's Python models without a server, each alone, with a fake engine where a real one would be slow."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.serving.triton.artifact import emit_repository, make_tokenizer
from tests.serving.triton.fakes import FINAL, Request, load_model, make_pb_utils, model_args
from trtspec.checkpoints.tokenizer import Tokenizer
from trtspec.core.errors import Overloaded, TrtspecError
from trtspec.core.processes import wait_until
from trtspec.engine.generation.request import LogitEdits, SamplingOptions, Scores, Stats, Update
from trtspec.serving.triton.python_models import responses
from trtspec.serving.triton.python_models.interruptions import (
    DISCONNECT_POLL_S,
    add_client_token,
    clear_disconnected,
    mark_disconnected,
)
from trtspec.serving.triton.python_models.responses import parse_error_id
from trtspec.serving.triton.python_models.tensors import decode_token_lists, encode_token_lists

STATS = Stats(prompt_tokens=5, new_tokens=3, drafted=8, accepted=2, steps=2)


@pytest.fixture(scope="module")
def artifact(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("artifact")
    make_tokenizer(root / "tokenizer")
    emit_repository(root / "model_repository")
    return root


@pytest.fixture(scope="module")
def tokenizer(artifact: Path) -> Tokenizer:
    return Tokenizer(artifact / "tokenizer")


@pytest.fixture
def pb_utils():
    return make_pb_utils()


class FakeEngine:
    """Accepts requests; the test controls their updates."""

    def __init__(self, settings=None) -> None:
        self.settings, self.asked, self.tell, self.cancelled, self.closed = settings, [], [], [], False
        self.before_return = lambda on_update: None
        self.occupancy = (0, 0)
        self.is_warm = False

    def submit(self, request, on_update):
        if not request.prompt_ids:
            raise TrtspecError("the prompt is empty")
        self.asked.append(request)
        self.tell.append(on_update)
        self.before_return(on_update)
        handle = type("RequestHandle", (), {})()
        number = len(self.tell) - 1
        handle.cancel = lambda: self.cancelled.append(number)
        return handle

    def set_draft_failure_callbacks(self, on_fallback, on_open) -> None:
        self.draft_failures = on_fallback, on_open

    def set_step_callback(self, on_step) -> None:
        self.on_step = on_step

    def close(self) -> None:
        self.closed = True


def start(
    artifact: Path, pb_utils, monkeypatch, name: str = "tensorrt_llm", *, decoupled: bool = True, warmup: bool = False
):
    module = load_model(name, pb_utils)
    if name == "tensorrt_llm":
        monkeypatch.setattr(module, "Engine", lambda *given: FakeEngine(given))
        monkeypatch.setattr(module, "warm_up", lambda engine: setattr(engine, "is_warm", True))
    args = model_args(artifact / "model_repository" / name)
    model = module.TritonPythonModel()
    if not decoupled:
        args["model_config"] = args["model_config"].replace('"decoupled": true', '"decoupled": false')
    if warmup:
        args["model_config"] = json.dumps(with_parameter(json.loads(args["model_config"]), "warmup", "true"))
    model.initialize(args)
    return model


def with_parameter(config: dict, key: str, value: str) -> dict:
    return config | {"parameters": config["parameters"] | {key: {"string_value": value}}}


def ask(*ids: int, **inputs) -> Request:
    return Request(
        input_ids=np.array([ids], np.int32),
        input_lengths=len(ids),
        request_output_len=9,
        **{name: np.array([[value]]) for name, value in ({"exclude_input_in_output": True} | inputs).items()},
    )


def answers(request: Request) -> list[tuple[list[int], bool, bool]]:
    """Return (ids, continuation, final) of each response."""
    rows = []
    for response, flags in request.sender.sent:
        assert response.error is None, response.error.message
        length = int(response.outputs["sequence_length"].item())
        ids = response.outputs["output_ids"][0, 0, :length].tolist()
        rows.append((ids, bool(response.outputs["continuation"].item()), flags == FINAL))
    return rows


def test_engine_receives_the_configured_paths_and_sizes(artifact, pb_utils, monkeypatch) -> None:
    target, draft, settings, tokenizer = start(artifact, pb_utils, monkeypatch).engine.settings
    assert (target, draft) == (artifact / "checkpoints/target", artifact / "checkpoints/draft")
    assert tokenizer == artifact / "tokenizer"
    assert (settings.method, settings.draft_len, settings.max_batch_size) == ("draft_target", 4, 16)
    assert (settings.max_input_len, settings.max_seq_len, settings.max_num_tokens) == (64, 128, 512)


def test_stream_sends_new_tokens_and_ends_with_a_final_response(artifact, pb_utils, monkeypatch) -> None:
    model, request = start(artifact, pb_utils, monkeypatch), ask(1, 2, streaming=True)
    assert model.execute([request]) is None
    tell = model.engine.tell[0]
    tell(Update((3, 4), None, STATS))
    tell(Update((5,), None, STATS))
    tell(Update((), "length", STATS))
    assert answers(request) == [([3, 4], False, False), ([5], True, False), ([], True, True)]
    last = {name: array.item() for name, array in request.sender.sent[-1][0].outputs.items() if array.size == 1}
    assert last["total_accepted_draft_tokens"] == 2
    assert last["total_draft_tokens"] == 8
    assert last["acceptance_rate"] == 0.25
    assert (last["num_input_tokens"], last["num_output_tokens"]) == (5, 3)


def test_request_without_streaming_gets_one_response(artifact, pb_utils, monkeypatch) -> None:
    model, request = start(artifact, pb_utils, monkeypatch), ask(1, 2)
    model.execute([request])
    for update in (Update((3, 4), None, STATS), Update((5,), "end_id", STATS)):
        model.engine.tell[0](update)
    assert answers(request) == [([3, 4, 5], False, True)]


def test_response_has_only_the_requested_outputs(artifact, pb_utils, monkeypatch) -> None:
    model, request = start(artifact, pb_utils, monkeypatch), ask(1, 2, streaming=True)
    request.wanted = {"output_ids", "sequence_length"}
    model.execute([request])
    for update in (Update((3,), None, STATS), Update((4,), "length", STATS)):
        model.engine.tell[0](update)
    assert [set(response.outputs) for response, _ in request.sender.sent] == [request.wanted] * 2


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, [1, 2, 3]),
        ({"streaming": True}, [3]),
        ({"exclude_input_in_output": False, "streaming": True}, [1, 2, 3]),
        ({"exclude_input_in_output": True}, [3]),
    ],
)
def test_prompt_is_returned_as_by_the_nvidia_model(given, expected, artifact, pb_utils, monkeypatch) -> None:
    model, request = start(artifact, pb_utils, monkeypatch), ask(1, 2, **given)
    if "exclude_input_in_output" not in given:
        del request.inputs["exclude_input_in_output"]
    model.execute([request])
    model.engine.tell[0](Update((3,), "length", STATS))
    assert answers(request) == [(expected, False, True)]


def test_logit_edits_and_log_probability_options_reach_the_engine(artifact, pb_utils, monkeypatch) -> None:
    model = start(artifact, pb_utils, monkeypatch)
    request = ask(
        1, repetition_penalty=1.25, presence_penalty=0.5, frequency_penalty=-0.25, prompt_ignore_length=4, min_tokens=3,
        return_log_probs=True, num_top_logprobs=2,
    )  # fmt: skip
    request.inputs["bad_words_list"] = encode_token_lists([[7, 8], [9]])[None]
    request.inputs["embedding_bias"] = np.array([[0.0, 1.5, 0.0, -2.0]], np.float32)
    clients = ask(1, repetition_penalty=1.0, presence_penalty=0.0, frequency_penalty=0.0, return_log_probs=False)
    clients.inputs |= {"bad_words_list": encode_token_lists([])[None], "embedding_bias": np.zeros((1, 0), np.float32)}
    model.execute([request, clients, ask(1, num_top_logprobs=1)])
    asked, neutral, top = model.engine.asked
    assert asked.edits == LogitEdits(1.25, 0.5, -0.25, 4, 3, ((7, 8), (9,)), {1: 1.5, 3: -2.0})
    assert (asked.return_log_probs, asked.num_top_log_probs) == (True, 2)
    assert neutral.edits == LogitEdits()
    assert not neutral.scored
    assert (top.return_log_probs, top.num_top_log_probs) == (True, 1)


def test_log_probabilities_are_sent_with_their_tokens(artifact, pb_utils, monkeypatch) -> None:
    """`cum_log_probs` covers the text so far, the others the tokens of the response."""
    model, stream = start(artifact, pb_utils, monkeypatch), ask(1, return_log_probs=True, streaming=True)
    model.execute([stream])
    rows = Scores(
        None, -np.ones(3, np.float32), -np.ones((3, 2), np.float32), np.arange(6, dtype=np.int32).reshape(3, 2)
    )
    model.engine.tell[0](Update((3, 4), None, STATS, scores=rows.part(0, 2)))
    model.engine.tell[0](Update((5,), "length", STATS, scores=rows.part(2)))
    first, last = (response.outputs for response, _ in stream.sender.sent)
    assert first["output_log_probs"].tolist() == [[[-1.0, -1.0]]]
    assert (first["cum_log_probs"].tolist(), last["cum_log_probs"].tolist()) == ([[-2.0]], [[-3.0]])
    assert last["top_logprobs"].tolist() == [[[-1.0, -1.0]]]
    assert last["top_logprob_ids"].tolist() == [[[4, 5]]]


def test_stop_request_cancels_the_request_with_the_same_id(artifact, pb_utils, monkeypatch) -> None:
    model = start(artifact, pb_utils, monkeypatch)
    running, other, stop, stray = ask(1, streaming=True), ask(1, streaming=True), ask(0, stop=True), ask(0, stop=True)
    for request, name in ((running, "a"), (other, "b"), (stop, "a"), (stray, "")):
        request.request_id = lambda name=name: name
    model.execute([running, other, stop, stray])
    assert model.engine.cancelled == [0]
    for tell in model.engine.tell:
        tell(Update((3,), "cancelled", STATS))
    assert answers(running) == [([3], False, True)]
    assert other.sender.sent[0][0].error.code == "cancelled"
    for request in (stop, stray):
        [(response, flags)] = request.sender.sent
        assert (response.outputs, response.error, flags) == ({}, None, FINAL)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, SamplingOptions()),
        ({"temperature": 0.0, "runtime_top_k": 40}, SamplingOptions(top_k=40)),
        ({"runtime_top_k": 1}, SamplingOptions(top_k=1)),
        ({"temperature": 0.7}, SamplingOptions()),
        ({"temperature": 0.7, "runtime_top_k": 0, "runtime_top_p": 0.0}, SamplingOptions()),
        ({"temperature": 0.7, "runtime_top_p": 1.0}, SamplingOptions(pytest.approx(0.7))),
        ({"runtime_top_k": 40}, SamplingOptions(1.0, 40)),
        ({"runtime_top_p": 0.5}, SamplingOptions(1.0, 0, 0.5)),
        ({"temperature": 0.5, "runtime_top_k": 9, "runtime_top_p": 0.0, "seed": 7}, SamplingOptions(0.5, 9, 1.0, 7)),
    ],
)
def test_sampling_defaults_match_tensorrt_llm(given, expected, artifact, pb_utils, monkeypatch) -> None:
    model = start(artifact, pb_utils, monkeypatch)
    model.execute([ask(1, **given)])
    assert model.engine.asked[0].sampling == expected


def test_stop_words_draft_length_and_end_ids_reach_the_engine(artifact, pb_utils, monkeypatch, tokenizer) -> None:
    model = start(artifact, pb_utils, monkeypatch)
    stop = ask(1, num_draft_tokens=0, end_id=-1)
    stop.inputs["stop_words_list"] = encode_token_lists([tokenizer.encode(" é"), tokenizer.encode("\n")])[None]
    model.execute([stop, ask(1), ask(1, end_id=tokenizer.end_ids[0]), ask(1, end_id=9)])
    assert model.engine.asked[0].stop == (" é", "\n")
    assert model.engine.asked[0].draft_len == 0
    assert [asked.end_ids for asked in model.engine.asked] == [(), tokenizer.end_ids, tokenizer.end_ids, (9,)]


def test_draft_tokens_of_a_request_reach_the_engine(artifact, pb_utils, monkeypatch) -> None:
    model, request, plain = start(artifact, pb_utils, monkeypatch), ask(1), ask(1)
    logits = np.arange(6, dtype=np.float32).reshape(1, 2, 3)
    request.inputs |= {"draft_input_ids": np.array([[4, 5]], np.int32), "draft_logits": logits}
    model.execute([request, plain])
    logits += 1.0  # the server reuses the memory
    asked, other = model.engine.asked
    assert asked.draft_ids == (4, 5)
    assert asked.draft_logits.tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
    assert (other.draft_ids, other.draft_logits, other.return_logits) == ((), None, False)


def test_generation_logits_are_sent_with_their_tokens(artifact, pb_utils, monkeypatch) -> None:
    model = start(artifact, pb_utils, monkeypatch)
    whole, stream = ask(1, return_generation_logits=True), ask(1, return_generation_logits=True, streaming=True)
    model.execute([whole, stream])
    assert all(asked.return_logits for asked in model.engine.asked)
    rows = np.arange(6, dtype=np.float32).reshape(3, 2)
    for tell in model.engine.tell:
        tell(Update((3, 4), None, STATS, scores=Scores(rows[:2])))
        tell(Update((5,), None, STATS, scores=Scores(rows[2:])))
        tell(Update((), "length", STATS, scores=Scores(rows[:0])))
    sent = [[response.outputs["generation_logits"].tolist() for response, _ in r.sender.sent] for r in (whole, stream)]
    assert sent[0] == [[[rows.tolist()]]]
    assert sent[1] == [[[rows[:2].tolist()]], [[rows[2:].tolist()]], [[[]]]]


def test_lookahead_sizes_reach_the_engine_only_if_set_together(artifact, pb_utils, monkeypatch) -> None:
    model = start(artifact, pb_utils, monkeypatch)
    sizes = {"lookahead_window_size": 3, "lookahead_ngram_size": 2, "lookahead_verification_set_size": 1}
    one = ask(1, lookahead_ngram_size=2)
    model.execute([ask(1, **sizes), one])
    assert model.engine.asked[0].options == {"window": 3, "ngram": 2, "verification": 1}
    assert one.sender.sent[0][0].error.message == (
        "lookahead_window_size, lookahead_ngram_size, lookahead_verification_set_size must be set together"
    )


def test_acceptance_threshold_with_draft_logits_is_rejected(artifact, pb_utils, monkeypatch) -> None:
    model = start(artifact, pb_utils, monkeypatch)
    idle, lossy = ask(1, draft_acceptance_threshold=0.5), ask(1, draft_acceptance_threshold=0.5)
    for request in (idle, lossy):
        request.inputs["draft_input_ids"] = np.array([[4]], np.int32)
    lossy.inputs["draft_logits"] = np.zeros((1, 1, 3), np.float32)
    model.execute([idle, lossy])
    assert len(model.engine.asked) == 1
    assert lossy.sender.sent[0][0].error.message.startswith(
        "draft_acceptance_threshold 0.5 with draft_logits would change the text's distribution"
    )


def test_invalid_request_in_a_batch_does_not_affect_the_others(artifact, pb_utils, monkeypatch) -> None:
    model = start(artifact, pb_utils, monkeypatch)
    broken, good = ask(1), ask(1)
    del broken.inputs["input_ids"]
    requests = [ask(1, beam_width=4), ask(), broken, good]
    model.execute(requests)
    model.engine.tell[0](Update((3,), "length", STATS))
    errors = [request.sender.sent for request in requests[:3]]
    assert [len(sent) for sent in errors] == [1, 1, 1]
    assert all(flags == FINAL for [(_, flags)] in errors)
    assert errors[0][0][0].error.message == "beam_width 4 is not supported by the torch engine"
    assert errors[1][0][0].error.message == "the prompt is empty"
    assert errors[2][0][0].error.message == "the request lacks input_ids"
    assert answers(good) == [([3], False, True)]


@pytest.mark.parametrize(("reason", "code"), [("cancelled", "cancelled"), ("error", "internal")])
def test_engine_error_ends_the_stream(reason, code, artifact, pb_utils, monkeypatch) -> None:
    model, request = start(artifact, pb_utils, monkeypatch), ask(1, streaming=True)
    model.execute([request])
    model.engine.tell[0](Update((3,), reason, STATS, "the engine failed: no memory" if reason == "error" else None))
    [(response, flags)] = request.sender.sent
    assert (response.error.code, flags) == (code, FINAL)
    if reason == "cancelled":
        assert response.error.message == "the request was cancelled"
    else:
        assert "no memory" not in response.error.message
        assert f"internal error {parse_error_id(response.error.message)}: " in pb_utils.logged[0]
        assert "the engine failed: no memory" in pb_utils.logged[0]


@pytest.mark.slow
def test_client_disconnect_cancels_the_request(artifact, pb_utils, monkeypatch) -> None:
    model, request = start(artifact, pb_utils, monkeypatch), ask(1)
    model.execute([request])
    model.engine.tell[0](Update((3,), None, STATS))
    assert model.engine.cancelled == []
    request.sender.cancelled = True
    assert wait_until(lambda: model.engine.cancelled == [0], 10)


@pytest.mark.slow
def test_cancellation_is_polled_outside_the_engine_thread(artifact, pb_utils, monkeypatch) -> None:
    model, request = start(artifact, pb_utils, monkeypatch), ask(1, streaming=True)
    asked_by: list[str] = []
    request.sender.is_cancelled = lambda: asked_by.append(threading.current_thread().name)
    model.execute([request])
    for _ in range(3):
        model.engine.tell[0](Update((3,), None, STATS))
    assert wait_until(lambda: len(asked_by) > 1, 10)
    model.engine.tell[0](Update((3,), "length", STATS))
    count = len(asked_by)
    time.sleep(3 * DISCONNECT_POLL_S)
    assert asked_by == ["departures"] * count, "the server must not be queried after the last response"


@pytest.mark.slow
def test_client_disconnect_before_submit_returns_cancels_the_request(artifact, pb_utils, monkeypatch) -> None:
    model, request = start(artifact, pb_utils, monkeypatch), ask(1)
    request.sender.cancelled = True
    model.engine.before_return = lambda _: time.sleep(3 * DISCONNECT_POLL_S)
    model.execute([request])
    assert model.engine.cancelled == [0]


def test_updates_before_submit_returns_are_delivered(artifact, pb_utils, monkeypatch) -> None:
    model, request = start(artifact, pb_utils, monkeypatch), ask(1)
    request.sender.cancelled = True
    model.engine.before_return = lambda on_update: on_update(Update((3,), None, STATS))
    model.execute([request])
    model.engine.tell[0](Update((4,), "length", STATS))
    assert answers(request) == [([3, 4], False, True)]


def test_failed_response_send_is_logged_and_cancels_the_request(artifact, pb_utils, monkeypatch) -> None:
    model, request = start(artifact, pb_utils, monkeypatch), ask(1, streaming=True)
    model.execute([request])
    request.sender.send = lambda *_, **__: 1 / 0
    model.engine.tell[0](Update((3,), None, STATS))
    assert "ZeroDivisionError" in pb_utils.logged[0]
    assert model.engine.cancelled == [0]


def test_execute_without_decoupling_returns_all_responses_in_order(artifact, pb_utils, monkeypatch) -> None:
    model = start(artifact, pb_utils, monkeypatch, decoupled=False)
    model.engine.before_return = lambda on_update: on_update(Update((len(model.engine.asked),), "length", STATS))
    first, refused, second = model.execute([ask(1), ask(1, streaming=True), ask(1)])
    assert first.outputs["output_ids"].tolist() == [[[1]]]
    assert second.outputs["output_ids"].tolist() == [[[2]]]
    assert refused.error.message.startswith("streaming is not supported by this repository")


@pytest.mark.slow
def test_client_disconnect_without_decoupling_cancels_the_request(artifact, pb_utils, monkeypatch) -> None:
    model, request = start(artifact, pb_utils, monkeypatch, decoupled=False), ask(1)
    request.cancelled = True
    generation = model.start(request)
    assert wait_until(lambda: model.engine.cancelled == [0], 10)
    model.engine.tell[0](Update((), "cancelled", STATS))
    assert generation.responder.result().error.code == "cancelled"


def test_kernel_library_of_the_artifact_is_preferred(artifact, pb_utils, monkeypatch) -> None:
    library = artifact / "plugins" / "libtrtspec.so"
    library.parent.mkdir()
    library.touch()
    _, _, settings, _ = start(artifact, pb_utils, monkeypatch).engine.settings
    assert settings.kernels[0] == library


def test_engine_is_warmed_up_if_the_recipe_enables_it(artifact, pb_utils, monkeypatch) -> None:
    assert not start(artifact, pb_utils, monkeypatch).engine.is_warm
    assert start(artifact, pb_utils, monkeypatch, warmup=True).engine.is_warm


def test_finalize_closes_the_engine(artifact, pb_utils, monkeypatch) -> None:
    model = start(artifact, pb_utils, monkeypatch)
    model.finalize()
    assert model.engine.closed


def texts(*values: str) -> np.ndarray:
    return np.array([[value.encode() for value in values]], dtype=object)


def test_preprocessing_returns_token_ids_and_nvidia_word_lists(artifact, pb_utils, monkeypatch, tokenizer) -> None:
    model = start(artifact, pb_utils, monkeypatch, "preprocessing")
    canonical = Request(
        QUERY=texts("Hé"), REQUEST_OUTPUT_LEN=20, BAD_WORDS_DICT=texts(""), STOP_WORDS_DICT=texts("\n", "ab")
    )
    [response] = model.execute([canonical])
    outputs = {name: array.tolist() for name, array in response.outputs.items()}
    assert outputs["INPUT_ID"] == [tokenizer.encode("Hé")]
    assert outputs["REQUEST_INPUT_LEN"] == [[3]]
    assert outputs["REQUEST_OUTPUT_LEN"] == [[20]]
    assert outputs["OUT_END_ID"] == outputs["OUT_PAD_ID"] == [[tokenizer.end_ids[0]]]
    assert decode_token_lists(response.outputs["STOP_WORDS_IDS"][0]) == [tokenizer.encode("\n"), tokenizer.encode("ab")]
    assert decode_token_lists(response.outputs["BAD_WORDS_IDS"][0]) == []


def test_preprocessing_rejects_empty_text_and_forwards_end_and_pad_ids(artifact, pb_utils, monkeypatch) -> None:
    model = start(artifact, pb_utils, monkeypatch, "preprocessing")
    empty, given = model.execute(
        [
            Request(QUERY=texts(""), REQUEST_OUTPUT_LEN=1),
            Request(QUERY=texts("a"), REQUEST_OUTPUT_LEN=1, END_ID=-1, PAD_ID=5),
        ]
    )
    assert empty.error.message == "text_input is empty"
    assert (given.outputs["OUT_END_ID"].item(), given.outputs["OUT_PAD_ID"].item()) == (-1, 5)


def test_postprocessing_decodes_only_the_sequence_length(artifact, pb_utils, monkeypatch, tokenizer) -> None:
    model = start(artifact, pb_utils, monkeypatch, "postprocessing")
    ids = np.array([[[*tokenizer.encode("né"), 0, 0]]], np.int32)
    [whole, empty] = model.execute(
        [Request(TOKENS_BATCH=ids, SEQUENCE_LENGTH=3), Request(TOKENS_BATCH=ids, SEQUENCE_LENGTH=0, CONTINUATION=True)]
    )
    assert whole.outputs["OUTPUT"].tolist() == ["né".encode()]  # [n], the shape that NVIDIA's clients read
    assert empty.outputs["OUTPUT"].tolist() == [b""]


def test_full_engine_queue_is_reported_as_unavailable(artifact: Path, pb_utils, monkeypatch) -> None:
    model = start(artifact, pb_utils, monkeypatch)

    def full(request, on_update) -> None:
        raise Overloaded(128)

    model.engine.submit = full
    request = ask(1)
    model.execute([request])
    [(answer, flags)] = request.sender.sent
    assert (answer.error.code, flags) == ("unavailable", FINAL)


def test_metrics_match_the_engine_updates(artifact, pb_utils, monkeypatch) -> None:
    model = start(artifact, pb_utils, monkeypatch)
    model.execute([ask(1, 2), ask(3), ask()])
    model.engine.tell[0](Update((3,), None, Stats(2, 1), queue_s=0.5))
    model.engine.tell[0](Update((4, 5), "stop", replace(STATS, accepted_by_position=(2,)), queue_s=0.5))
    model.engine.tell[1](Update((), "cancelled", Stats(1)))
    model.finalize()
    told = {name: sum(values) for name, values in pb_utils.exported.items()}
    counts = {"prompt_tokens": 6, "generated_tokens": 3, "drafted_tokens": 8, "accepted_tokens": 2, "decode_steps": 2}
    assert {name: told[f"trtspec_{name}_total",] for name in counts} == counts
    assert told["trtspec_accepted_tokens_by_position_total", "1"] == 2
    reasons = ("stop", "cancelled", "refused", "error")
    assert [told["trtspec_requests_total", reason] for reason in reasons] == [1, 1, 1, 0]
    assert pb_utils.exported["trtspec_queue_seconds",] == [0.5]
    assert len(pb_utils.exported["trtspec_time_to_first_token_seconds",]) == 1


def test_model_without_metrics_support_serves_requests(artifact, pb_utils, monkeypatch) -> None:
    del pb_utils.MetricFamily
    model, request = start(artifact, pb_utils, monkeypatch), ask(1, 2)
    model.execute([request])
    model.engine.tell[0](Update((3,), "length", STATS))
    assert answers(request) == [([3], False, True)]
    assert [line[:42] for line in pb_utils.logged] == ["metrics are disabled for this model: Attri"]


@pytest.mark.parametrize("name", ["tensorrt_llm", "preprocessing"])
def test_unknown_field_is_rejected_with_a_suggestion(name: str, artifact, pb_utils, monkeypatch) -> None:
    model = start(artifact, pb_utils, monkeypatch, name)
    if name == "tensorrt_llm":
        request, nearest = ask(1), "temperature"
        request.sent = {"tempreature": 1.0}
        model.execute([request])
        ((response, _),) = request.sender.sent
    else:
        request, nearest = Request(sent={"QUERRY": "a"}, QUERY=b"a", REQUEST_OUTPUT_LEN=3), "QUERY"
        (response,) = model.execute([request])
    assert response.error.code == "invalid"
    assert response.error.message.endswith(f"hint: did you mean {nearest}?")


def test_legacy_field_names_reach_the_engine_and_are_used_in_errors(artifact, pb_utils, monkeypatch) -> None:
    model = start(artifact, pb_utils, monkeypatch)
    request = ask(1, runtime_top_p=0.9, random_seed=np.uint64(7))
    request.sent = {"min_length": 3, "accumulate_tokens": True}
    model.execute([request])
    (asked,) = model.engine.asked
    assert (asked.sampling.seed, asked.edits.min_tokens) == (7, 3)
    refused = ask(1, seed=np.uint64(8), random_seed=np.uint64(7))
    model.execute([refused])
    ((response, _),) = refused.sender.sent
    assert response.error.message.startswith("seed is 8 and random_seed is 7: they are the same field")


def test_disconnect_reported_by_the_proxy_cancels_the_request(artifact, pb_utils, monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setattr(responses, "DISCONNECTS", str(tmp_path))
    model, request, other = start(artifact, pb_utils, monkeypatch), ask(1), ask(2)
    token, body = add_client_token(b'{"a": 1}')
    request.sent = json.loads(body)
    del request.sent["a"]
    other.sent = {"trtspec_client": "../" + token}
    model.execute([request, other])
    mark_disconnected(tmp_path, token)
    assert wait_until(lambda: model.engine.cancelled == [0], 10)
    clear_disconnected(tmp_path, token)
    clear_disconnected(tmp_path, token)
    assert not [*tmp_path.iterdir()]
