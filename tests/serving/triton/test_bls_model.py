# SPDX-License-Identifier: Apache-2.0
"""tensorrt_llm_bls and its models without a server: tensors and failures."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.serving.triton.answering import WAIT_S, Models, Response, Serve, answering, response
from tests.serving.triton.artifact import make_tokenizer
from tests.serving.triton.fakes import FINAL, Request, load_model, make_pb_utils, model_args
from trtspec.checkpoints.tokenizer import Tokenizer
from trtspec.core.errors import TrtspecError
from trtspec.core.paths import model_repository_dir
from trtspec.core.processes import wait_until
from trtspec.engine.generation.circuit_breaker import FAILURES, REST_S
from trtspec.engine.generation.request import SamplingOptions
from trtspec.serving.triton.config import load_config
from trtspec.serving.triton.python_models.adaptive_draft_len import AdaptiveDraftLen, DraftLenChoice
from trtspec.serving.triton.python_models.bls import LOOKAHEAD_SIZES, ModelAnswer, ModelCall, ServerModel, TokenDraft
from trtspec.serving.triton.python_models.grpc_client import (
    LONGEST_TEXT_S,
    LocalServerClient,
    ModelError,
    ReconnectingStream,
    local_grpc_address,
)
from trtspec.serving.triton.python_models.interruptions import CancellationWatcher
from trtspec.serving.triton.python_models.responses import parse_error_id
from trtspec.serving.triton.python_models.tensors import decode_token_lists

SCRIPT = "The target says né, whatever it is asked."


def tokens(*ids: int, padding: int = 0, **outputs: Any) -> Response:
    return response(output_ids=[[[*ids, *[9] * padding]]], sequence_length=[[len(ids)]], **outputs)


@pytest.fixture(scope="module")
def server() -> Iterator[Models]:
    with answering() as models:
        yield models


@pytest.fixture
def models(server: Models) -> Models:
    server.made, server.waits, server.closes_early = [], False, False
    return server


@pytest.fixture
def line(models: Models) -> Iterator[ReconnectingStream]:
    """A line to `models`."""
    with (
        closing(LocalServerClient(models.address)) as server,
        closing(CancellationWatcher()) as clock,
        closing(ReconnectingStream(server, clock.watch)) as line,
    ):
        yield line


CALL = ModelCall([5, 6], 3, SamplingOptions(0.7, top_k=4, top_p=0.9, seed=2**64 - 1))


Ask = Callable[..., tuple[Any, list[ModelAnswer]]]


@pytest.fixture
def asked(models: Models, line: ReconnectingStream) -> Ask:
    def ask(call: ModelCall, *responses: Response) -> tuple[Any, list[ModelAnswer]]:
        models.serve = lambda *_: list(responses)
        answers = list(ServerModel(line, "m")(call))
        return models.made[0], answers

    return ask


def test_model_call_is_sent_as_tensors_of_one_request(asked: Ask) -> None:
    logits = np.zeros((2, 7), np.float32)
    request, answers = asked(
        ModelCall(CALL.text, 3, CALL.sampling, draft=TokenDraft([1, 2], logits), wants_logits=True),
        tokens(1, 2, 3, generation_logits=np.ones((1, 1, 3, 7), np.float32)),
    )
    assert request.model == "m"
    assert request.outputs == ["output_ids", "sequence_length", "generation_logits"]
    values = {name: array.tolist() for name, array in request.inputs.items() if name != "draft_logits"}
    assert values == {
        "input_ids": [[5, 6]],
        "input_lengths": [[2]],
        "request_output_len": [[3]],
        "end_id": [[-1]],
        "exclude_input_in_output": [[True]],
        "streaming": [[False]],
        "return_generation_logits": [[True]],
        "return_perf_metrics": [[False]],
        "temperature": [[pytest.approx(0.7)]],
        "runtime_top_k": [[4]],
        "runtime_top_p": [[pytest.approx(0.9)]],
        "seed": [[2**64 - 1]],
        "draft_input_ids": [[1, 2]],
    }
    assert request.inputs["draft_logits"].shape == (1, 2, 7)
    kinds = {name: array.dtype.name for name, array in request.inputs.items()}
    assert {kinds[name] for name in ("temperature", "runtime_top_p", "draft_logits")} == {"float32"}
    assert kinds["seed"] == "uint64"
    assert {kinds[name] for name in ("input_ids", "request_output_len", "draft_input_ids", "end_id")} == {"int32"}
    [answer] = answers
    assert answer.ids == [1, 2, 3]
    assert answer.logits.shape == (3, 7)


def test_model_call_omits_unset_tensors(asked: Ask) -> None:
    request, _ = asked(ModelCall([5], 1, SamplingOptions(0.9, top_k=1)), tokens(1))
    assert request.outputs == ["output_ids", "sequence_length"]
    left_out = {"draft_input_ids", "draft_logits", "stop_words_list", "lookahead_window_size"}
    assert not left_out & set(request.inputs)
    greedy = [request.inputs[name].item() for name in ("temperature", "runtime_top_k", "runtime_top_p")]
    assert greedy == [1.0, 1, 1.0]


def test_model_call_for_a_whole_text_sends_stop_words_and_lookahead_sizes(asked: Ask) -> None:
    request, _ = asked(
        ModelCall([5], 9, SamplingOptions(), stop_words=[[7], [3, 4]], lookahead=(4, 3, 2), streams=True), tokens(1)
    )
    said = {name: request.inputs[name].tolist() for name in ("stop_words_list", "streaming")}
    assert said == {"stop_words_list": [[[7, 3, 4], [1, 3, -1]]], "streaming": [[True]]}
    sizes = [request.inputs[f"lookahead_{name}_size"] for name in ("window", "ngram", "verification_set")]
    assert [(size.tolist(), size.dtype) for size in sizes] == [([[4]], "int32"), ([[3]], "int32"), ([[2]], "int32")]


def counts(drafted: int, accepted: int) -> dict[str, Any]:
    return {"total_draft_tokens": [[drafted]], "total_accepted_draft_tokens": [[accepted]]}


def test_answer_counts_are_differences_from_the_previous_response(asked: Ask) -> None:
    call = ModelCall([5], 9, SamplingOptions(), wants_counts=True)
    request, answers = asked(call, tokens(1, **counts(0, 0)), tokens(2, 3, **counts(5, 1)), tokens(**counts(9, 1)))
    assert request.inputs["return_perf_metrics"].tolist() == [[True]]
    assert request.outputs[2:] == ["total_draft_tokens", "total_accepted_draft_tokens"]
    assert [(answer.ids, answer.drafted, answer.accepted) for answer in answers] == [
        ([1], 0, 0),
        ([2, 3], 5, 1),
        ([], 4, 0),
    ]


def test_model_without_draft_counts_is_counted_as_not_drafting(asked: Ask) -> None:
    _, [answer] = asked(ModelCall([5], 9, SamplingOptions(), wants_counts=True), tokens(1))
    assert (answer.drafted, answer.accepted) == (0, 0)


def test_padding_and_empty_responses_yield_no_tokens(asked: Ask) -> None:
    _, answers = asked(CALL, tokens(1, padding=2), tokens(), response())
    assert [answer.ids for answer in answers] == [[1], []]


def test_model_error_message_is_forwarded(asked: Ask) -> None:
    with pytest.raises(TrtspecError, match="m: too long"):
        asked(CALL, response(error="too long"), tokens(1))


def test_cancelled_stream_ends_the_request(models: Models, line: ReconnectingStream) -> None:
    models.serve, models.waits = lambda *_: [tokens(1), tokens(2)], True
    answers = ServerModel(line, "m")(CALL)
    assert next(iter(answers)).ids == [1]
    line.cancel()
    assert models.made[0].left.wait(WAIT_S)


@pytest.mark.slow
def test_completed_stream_is_not_cancelled(models: Models, line: ReconnectingStream) -> None:
    """The server might keep a cancelled stream, and the model behind it would never be unloaded."""
    models.serve, models.lingers = lambda *_: [tokens(1)], True
    assert len(list(ServerModel(line, "m")(CALL))) == 1
    line.close()
    assert models.ended == [True]


@pytest.mark.slow
def test_stream_cancelled_during_its_last_response_is_not_reused(models: Models) -> None:
    """The cancellation may arrive during the next call, which may be of another model."""
    late = SimpleNamespace(has_left=True, close=lambda: None)
    models.serve, before = lambda *_: [tokens(1)], models.streams
    with (
        closing(LocalServerClient(models.address)) as server,
        closing(ReconnectingStream(server, lambda *_: late)) as line,
    ):
        for limit_s in (5.0, LONGEST_TEXT_S):
            assert [answer.ids for answer in ServerModel(line, "m", limit_s)(CALL)] == [[1]]
    assert models.streams - before == 2


@pytest.mark.slow
def test_models_share_a_stream(models: Models, line: ReconnectingStream) -> None:
    before = models.streams
    for name, token in (("draft", 1), ("target", 2), ("draft", 3)):
        models.serve = lambda model, _, token=token: [tokens(len(model)), tokens(token)]
        assert [answer.ids for answer in ServerModel(line, name)(CALL)] == [[len(name)], [token]]
    assert models.streams - before <= 1
    assert [request.model for request in models.made] == ["draft", "target", "draft"]


def test_unreachable_server_error_names_its_address() -> None:
    refused = pytest.raises(TrtspecError, match=r"m: .*127\.0\.0\.1:1: ")
    with closing(LocalServerClient("127.0.0.1:1")) as gone, closing(CancellationWatcher()) as clock, refused:
        list(ServerModel(ReconnectingStream(gone, clock.watch), "m")(CALL))


@pytest.mark.slow
def test_late_or_failed_model_does_not_block_calls_of_other_models(models: Models, line: ReconnectingStream) -> None:
    def serve(model: str, inputs: dict[str, np.ndarray]) -> Iterator[Response]:
        if model == "late":
            models.made[-1].left.wait(WAIT_S)
        yield tokens(1) if model != "broken" else response(error="no: internal error")

    models.serve, before = serve, models.streams
    with pytest.raises(ModelError, match=r"late: no response within 0\.3 s") as late:
        list(ServerModel(line, "late", 0.3)(CALL))
    with pytest.raises(ModelError, match="broken: no") as broken:
        list(ServerModel(line, "broken", 5.0)(CALL))
    assert [answer.ids for answer in ServerModel(line, "good", 5.0)(CALL)] == [[1]]
    assert (late.value.status, broken.value.status) == ("UNAVAILABLE", "INTERNAL")
    assert models.made[0].left.wait(WAIT_S), "the late request must be cancelled"
    assert models.streams - before == 3


def test_closed_stream_rejects_requests(line: ReconnectingStream) -> None:
    line.close()
    with pytest.raises(ModelError, match="the request has ended"):
        list(ServerModel(line, "m")(CALL))


def test_stream_closed_before_the_last_response_is_an_error(asked: Ask, models: Models) -> None:
    models.closes_early = True
    with pytest.raises(TrtspecError, match="the server closed the stream before the last response"):
        asked(CALL, tokens(1))


@pytest.mark.parametrize(
    ("argv", "address"),
    [
        (["tritonserver"], "127.0.0.1:8001"),
        (["/opt/tritonserver", "--http-port=8001", "--grpc-port=9001", ""], "127.0.0.1:9001"),
        (["mine", "--grpc-address", "0.0.0.0", "--grpc-port", "9001", "--allow-grpc", "True"], "127.0.0.1:9001"),
        (["mine", "--grpc-address=10.0.0.7"], "10.0.0.7:8001"),
    ],
)
def test_local_grpc_address_is_read_from_the_server_arguments(argv: list[str], address: str) -> None:
    assert local_grpc_address(argv) == address


@pytest.mark.parametrize("option", ["--allow-grpc=false", "--allow-grpc=0", "--grpc-use-ssl=true"])
def test_server_without_plain_grpc_is_rejected(option: str) -> None:
    with pytest.raises(TrtspecError, match=f"started with {option.partition('=')[0]}"):
        local_grpc_address(["tritonserver", option])


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("artifact")
    make_tokenizer(folder / "tokenizer")
    return folder


@pytest.fixture
def pb_utils(models: Models) -> Any:
    """Return a fake stub, and with it the models that the BLS model calls."""
    utils = make_pb_utils()
    utils.models = models
    return utils


def scripted(tokenizer: Tokenizer, prompt: str) -> Serve:
    """Return a server whose target follows the script, and whose draft deviates at every third token."""
    script, start = tokenizer.encode(SCRIPT), len(tokenizer.encode(prompt))

    def serve(model: str, inputs: dict[str, np.ndarray]) -> list[Response]:
        place, count = inputs["input_ids"].size - start, inputs["request_output_len"].item()
        own = script[place : place + count]
        if model == "tensorrt_llm_draft":
            return [tokens(*(0 if (place + number) % 3 == 2 else token for number, token in enumerate(own)))]
        draft = inputs.get("draft_input_ids", np.empty((1, 0)))[0].tolist()
        agreed = next((number for number, token in enumerate(draft) if token != own[number]), len(draft))
        return [tokens(*own[: agreed + 1])] if draft else [tokens(token) for token in own]

    return serve


def start(root: Path, pb_utils: Any, serve: Serve | None = None, **changes: str) -> Any:
    """Return the model of an artifact at `root`; `serve` responds for the models that it calls."""
    module = load_model("tensorrt_llm_bls", pb_utils)
    module.local_server_client = lambda: LocalServerClient(pb_utils.models.address)
    pb_utils.models.serve = serve or scripted(Tokenizer(root / "tokenizer"), "Hé")
    args = model_args(model_repository_dir() / "tensorrt_llm_bls", tokenizer_dir=str(root / "tokenizer"), **changes)
    model = module.TritonPythonModel()
    model.initialize(args)
    return model


def texts(*values: str) -> np.ndarray:
    return np.array([[value.encode() for value in values]], dtype=object)


def ask(text: str = "Hé", **inputs: Any) -> Request:
    return Request(text_input=texts(text), max_tokens=20, **inputs)


def run(model: Any, *requests: Request) -> list[list[tuple[Any, bool]]]:
    """Return the responses of each request, and whether each is its last."""
    assert model.execute(list(requests)) is None
    model.finalize()
    return [[(answer, flags == FINAL) for answer, flags in request.sender.sent] for request in requests]


def test_stream_sends_whole_characters_and_ends_with_counts(root, pb_utils) -> None:
    [sent] = run(start(root, pb_utils), ask(stream=True))
    pieces = [answer.outputs["text_output"].item().decode() for answer, _ in sent]
    ids = len(Tokenizer(root / "tokenizer").encode(SCRIPT[: len("".join(pieces))]))
    assert SCRIPT.startswith("".join(pieces))
    assert (len(pieces) > 3, ids, [final for _, final in sent]) == (True, 20, [False] * (len(sent) - 1) + [True])
    last = {name: array.item() for name, array in sent[-1][0].outputs.items() if name != "accepted_by_position"}
    assert (last["num_input_tokens"], last["num_output_tokens"], last["sequence_index"]) == (3, 20, 0)
    assert 0 < last["total_accepted_draft_tokens"] < last["total_draft_tokens"]
    assert last["acceptance_rate"] == pytest.approx(last["total_accepted_draft_tokens"] / last["total_draft_tokens"])
    by_position = sent[-1][0].outputs["accepted_by_position"].ravel().tolist()
    assert sum(by_position) == last["total_accepted_draft_tokens"]
    assert 20 - last["total_accepted_draft_tokens"] >= last["num_draft_steps"] >= by_position[0] > 0


def test_response_has_only_the_requested_outputs(root, pb_utils) -> None:
    [sent] = run(start(root, pb_utils), ask(stream=True, wanted={"text_output"}))
    assert len(sent) > 3
    assert all(set(answer.outputs) == {"text_output"} for answer, _ in sent)


def test_request_without_streaming_gets_one_response(root, pb_utils) -> None:
    [[(answer, final)]] = run(start(root, pb_utils), ask())
    assert (answer.outputs["text_output"].item().decode(), final) == (SCRIPT[:19], True)
    assert answer.outputs["sequence_length"].item() == 20


def failing(serve: Serve, models: Models, how: str) -> Serve:
    """Return a server whose draft model is late, dead or refuses from its third call on."""
    calls = 0

    def serve_failing(model: str, inputs: dict[str, np.ndarray]) -> list[Response]:
        nonlocal calls
        calls += model == "tensorrt_llm_draft"
        if model != "tensorrt_llm_draft" or calls < 3:
            return serve(model, inputs)
        if how == "late":
            models.made[-1].left.wait(WAIT_S)
        return [response(error="too long" if how == "refuses" else "Stub process is not healthy")]

    return serve_failing


@pytest.mark.slow
@pytest.mark.parametrize("how", ["late", "dead", "refuses"])
@pytest.mark.parametrize("stream", [True, False])
def test_failed_draft_model_falls_back_to_the_target(root, pb_utils, how: str, stream: bool) -> None:
    serve = failing(scripted(Tokenizer(root / "tokenizer"), "Hé"), pb_utils.models, how)
    model = start(root, pb_utils, serve, draft_timeout_s="0.3")
    [sent] = run(model, ask(stream=stream))
    pieces = [answer.outputs["text_output"].item().decode() for answer, _ in sent]
    assert "".join(pieces) == SCRIPT[:19]
    reason = "refused" if how == "refuses" else "failed"
    assert pb_utils.exported["trtspec_fallbacks_total", reason] == [1]
    assert not model.breaker.is_open


def test_repeatedly_failing_draft_model_is_disabled_and_retried_later(root, pb_utils, monkeypatch) -> None:
    healthy, calls = scripted(Tokenizer(root / "tokenizer"), "Hé"), list[str]()
    state = {"dead": True}

    def serve(model: str, inputs: dict[str, np.ndarray]) -> list[Response]:
        calls.append(model)
        if model == "tensorrt_llm_draft" and state["dead"]:
            return [response(error="tensorrt_llm_draft is not ready")]
        return healthy(model, inputs)

    model, now = start(root, pb_utils, serve), [0.0]
    monkeypatch.setattr(model.breaker, "_now", lambda: now[0])  # it rests until the test moves the clock
    for _ in range(FAILURES + 3):
        assert answer_of(model, ask()) == SCRIPT[:19]
    assert calls.count("tensorrt_llm_draft") == FAILURES
    assert model.breaker.is_open
    state["dead"] = False
    now[0] += REST_S
    assert answer_of(model, ask()) == SCRIPT[:19]
    assert wait_until(lambda: not model.breaker.is_open, WAIT_S)
    model.finalize()
    assert pb_utils.exported["trtspec_breaker_open",][-1] == 0
    said = [line for line in pb_utils.logged if "disabled" in line or "works again" in line]
    assert len(said) == 2


def answer_of(model: Any, request: Request) -> str:
    """Return the text of one request without finalizing the model."""
    assert model.execute([request]) is None
    assert wait_until(lambda: any(flags == FINAL for _, flags in request.sender.sent), WAIT_S)
    return "".join(answer.outputs["text_output"].item().decode() for answer, _ in request.sender.sent)


def test_draft_length_is_fixed_scheduled_or_adaptive_by_request(root, pb_utils, monkeypatch) -> None:
    model = start(root, pb_utils, draft_len_schedule="[[1, 3], [2, 0]]")
    assert model.lengths.limit() == 3
    called: list[str] = []
    monkeypatch.setattr(AdaptiveDraftLen, "choose", lambda self: called.append("by speed") or DraftLenChoice(0, 0, 0.0))
    monkeypatch.setattr(AdaptiveDraftLen, "limit", lambda self: called.append("scheduled") or 0)
    for inputs, policy in (
        ({"num_draft_tokens": np.array([[2]], np.int32)}, set()),
        ({"seed": np.array([[7]], np.uint64), "top_p": np.array([[0.9]], np.float32)}, {"scheduled"}),
        ({"top_p": np.array([[0.9]], np.float32)}, {"by speed"}),
        ({"seed": np.array([[7]], np.uint64)}, {"by speed"}),
    ):
        called.clear()
        answer_of(model, ask(**inputs))
        assert {*called} == policy, inputs
    model.finalize()


@pytest.mark.slow
def test_client_disconnect_cancels_the_generation(root, pb_utils) -> None:
    request = ask(stream=True)

    def serve(model: str, inputs: dict[str, np.ndarray]) -> Iterator[Response]:
        yield tokens(7)
        request.sender.cancelled = True
        pb_utils.models.waits = True  # nothing follows until the client cancels

    [sent] = run(start(root, pb_utils, serve, **ALONE), request)
    assert [answer.outputs["num_output_tokens"].item() for answer, _ in sent[:-1]] == [1]
    assert (sent[-1][0].error.code, sent[-1][1]) == ("cancelled", True)
    assert pb_utils.models.made[0].left.wait(WAIT_S)


ALONE = {"draft_method": "none", "draft_len": "0", "tensorrt_llm_draft_model_name": ""}


@pytest.mark.parametrize("stream", [True, False])
def test_self_drafting_target_is_called_once_and_reports_its_counts(root, pb_utils, stream: bool) -> None:
    asked: list[dict[str, np.ndarray]] = []
    script = Tokenizer(root / "tokenizer").encode(SCRIPT)

    def serve(model: str, inputs: dict[str, np.ndarray]) -> list[Response]:
        assert model == "tensorrt_llm"
        asked.append(inputs)
        wanted = script[: inputs["request_output_len"].item()]
        return [tokens(*wanted[n : n + 2], **counts(3 * (n // 2 + 1), n // 2 + 1)) for n in range(0, len(wanted), 2)]

    [sent] = run(start(root, pb_utils, serve, **ALONE), ask(stream=stream, stop_words=texts("no such text")))
    pieces = [answer.outputs["text_output"].item().decode() for answer, _ in sent]
    assert "".join(pieces) == SCRIPT[:19]
    assert (len(pieces) > 5) is stream
    assert all("\ufffd" not in piece for piece in pieces)
    last = {name: array.item() for name, array in sent[-1][0].outputs.items() if name != "accepted_by_position"}
    assert (last["total_draft_tokens"], last["total_accepted_draft_tokens"]) == (30, 10)
    assert (last["acceptance_rate"], last["num_output_tokens"]) == (pytest.approx(1 / 3), 20)
    [inputs] = asked
    assert (inputs["streaming"].item(), inputs["request_output_len"].item()) == (True, 20)
    words = decode_token_lists(inputs["stop_words_list"][0])
    assert words == [Tokenizer(root / "tokenizer").encode("no such text")]


@pytest.mark.slow
def test_additional_end_ids_are_sent_as_stop_words(tmp_path: Path, pb_utils) -> None:
    make_tokenizer(tmp_path / "tokenizer")
    (tmp_path / "tokenizer" / "generation_config.json").write_text('{"eos_token_id": [0, 5, 7]}')
    asked: list[dict[str, np.ndarray]] = []

    def serve(model: str, inputs: dict[str, np.ndarray]) -> list[Response]:
        asked.append(inputs)
        return [tokens(40, 7)]

    [[(answer, _)], _] = run(start(tmp_path, pb_utils, serve, **ALONE), ask(), ask(end_id=9))
    assert answer.outputs["num_output_tokens"].item() == 1
    own, other = sorted(asked, key=lambda inputs: inputs["end_id"].item())
    assert own["end_id"].item() == 0
    assert decode_token_lists(own["stop_words_list"][0]) == [[5], [7]]
    assert (other["end_id"].item(), "stop_words_list" in other) == (9, False)


@pytest.mark.slow
def test_request_with_logit_edits_is_served_by_the_target_only(root, pb_utils) -> None:
    """The executor does not count drafted tokens when it verifies the tokens after them."""
    asked: list[tuple[str, dict[str, np.ndarray]]] = []

    def serve(model: str, inputs: dict[str, np.ndarray]) -> list[Response]:
        asked.append((model, inputs))
        return [tokens(40, 41)]

    edits = {"presence_penalty": np.array([[0.5]], np.float32), "min_tokens": np.array([[2]], np.int32)}
    bias = {"embedding_bias_weights": np.array([[2.0]], np.float32), "embedding_bias_words": texts("b")}
    run(start(root, pb_utils, serve), Request(**ask(bad_words=texts("ab")).inputs | edits | bias))
    [(model, inputs)] = asked
    assert model == "tensorrt_llm"
    assert (inputs["presence_penalty"].tolist(), inputs["min_tokens"].tolist()) == ([[0.5]], [[2]])
    assert [len(word) for word in decode_token_lists(inputs["bad_words_list"][0])] == [2]
    assert inputs["embedding_bias"].sum() == 2.0
    assert not {"draft_input_ids", "repetition_penalty"} & {*inputs}


def sizes(*numbers: int) -> dict[str, int]:
    return dict(zip(LOOKAHEAD_SIZES, numbers, strict=False))


LOOKAHEAD = {name: str(size) for name, size in sizes(5, 4, 3).items()}


@pytest.mark.slow
def test_request_may_reduce_the_lookahead_sizes(root, pb_utils) -> None:
    asked: list[dict[str, np.ndarray]] = []

    def serve(model: str, inputs: dict[str, np.ndarray]) -> list[Response]:
        asked.append(inputs)
        return [tokens(40)]

    run(start(root, pb_utils, serve, **ALONE, **LOOKAHEAD), ask(**sizes(5, 3, 1)), ask())
    told = [[inputs[name].item() for name in LOOKAHEAD_SIZES if name in inputs] for inputs in asked]
    assert sorted(told) == [[], [5, 3, 1]]


@pytest.mark.parametrize(
    ("settings", "inputs", "message"),
    [
        (ALONE, {"num_draft_tokens": 0}, "num_draft_tokens is not supported by this repository: the engine decides"),
        (
            ALONE,
            sizes(1, 1, 0),
            "lookahead_window_size is not supported by this repository: its method is not lookahead",
        ),
        (ALONE | LOOKAHEAD, sizes(2), "lookahead_verification_set_size must be set together"),
        (ALONE | LOOKAHEAD, sizes(5, 5, 3), "lookahead sizes (5, 5, 3) exceed the engine's, (5, 4, 3)"),
        (ALONE | {"greedy_only": "true"}, {"top_k": 9}, "takes the most probable token and cannot sample"),
        (ALONE | {"greedy_only": "true"}, {"min_tokens": 2}, "min_tokens is not supported by this engine, whose own"),
        (
            ALONE | {"greedy_only": "true"},
            {"sent": {"min_length": 2}},
            "min_length is not supported by this engine, whose",
        ),
        (ALONE, {"sent": {"tempreature": 1.0}}, "did you mean temperature?"),
        (ALONE, {"seed": np.uint64(1), "sent": {"random_seed": 2}}, "seed is 1 and random_seed is 2"),
        (ALONE | LOOKAHEAD, {"repetition_penalty": 1.5}, "repetition_penalty is not supported by this engine, whose"),
        (ALONE, {"return_log_probs": True}, "return_log_probs 1 is not supported by tensorrt_llm_bls"),
        (ALONE | {"greedy_only": "true"}, {"top_p": 0.9}, "takes the most probable token and cannot sample"),
        (ALONE | {"max_top_k": "1024"}, {"top_k": 1025}, "top_k is 1025, but this engine supports at most 1024"),
    ],
)
def test_unsupported_request_is_rejected_with_the_reason(root, pb_utils, settings, inputs, message: str) -> None:
    [[(answer, final)]] = run(start(root, pb_utils, lambda *_: [tokens(40)], **settings), ask(**inputs))
    assert message in answer.error.message
    assert final


@pytest.mark.slow
@pytest.mark.parametrize("inputs", [{}, {"temperature": 0.0}, {"temperature": 0.7}, {"top_k": 1, "temperature": 0.7}])
def test_greedy_only_engine_accepts_greedy_requests(root, pb_utils, inputs: dict[str, Any]) -> None:
    settings = ALONE | {"greedy_only": "true"}
    [[(answer, _)]] = run(start(root, pb_utils, lambda *_: [tokens(40)], **settings), ask(**inputs))
    assert answer.outputs["num_output_tokens"].item() == 1


@pytest.mark.parametrize("end_id", [1_048_576, -1])
def test_min_tokens_without_a_maskable_end_id_is_accepted(root, pb_utils, end_id: int) -> None:
    settings = ALONE | {"greedy_only": "true", "vocab_size": "300"}
    sent = {"min_length": 20, "accumulate_tokens": True, "length_penalty": 0.8}
    model = start(root, pb_utils, lambda *_: [tokens(40)], **settings)
    [[(answer, _)]] = run(model, ask(end_id=end_id, sent=sent))
    assert answer.error is None, answer.error.message


@pytest.mark.slow
@pytest.mark.parametrize("top_k", [0, 1, 1024])
def test_top_k_up_to_the_engine_maximum_is_accepted(root, pb_utils, top_k: int) -> None:
    model = start(root, pb_utils, lambda *_: [tokens(40)], **ALONE, max_top_k="1024")
    [[(answer, _)]] = run(model, ask(top_k=top_k))
    assert answer.error is None


def test_stop_string_cancels_the_engine_request(root, pb_utils) -> None:
    """The engine searches for the stop word's own tokens, but the text may be tokenized differently."""
    script = Tokenizer(root / "tokenizer").encode(SCRIPT)
    pb_utils.models.waits = True
    model = start(root, pb_utils, lambda *_: [tokens(token) for token in script], **ALONE)
    [[(answer, _)]] = run(model, ask(stop_words=texts("get")))
    assert answer.outputs["text_output"].item().decode() == "The target"
    assert pb_utils.models.made[0].left.wait(WAIT_S)


def test_exception_in_one_request_is_logged_and_the_next_is_served(root, pb_utils) -> None:
    tokenizer = Tokenizer(root / "tokenizer")
    good, broken = scripted(tokenizer, "Hé"), tokenizer.encode("b")[0]

    def serve(model: str, inputs: dict[str, np.ndarray]) -> list[Response]:
        return [response(sequence_length=[1])] if inputs["input_ids"][0, 0] == broken else good(model, inputs)

    [[(bad, _)], [(fine, _)]] = run(start(root, pb_utils, serve), ask("b"), ask())
    assert parse_error_id(bad.error.message)
    assert "KeyError" not in bad.error.message
    assert fine.outputs["text_output"].item().decode() == SCRIPT[:19]
    assert "output_ids" in pb_utils.logged[0]


def test_invalid_repository_settings_are_rejected_at_load(root, pb_utils) -> None:
    with pytest.raises(
        TrtspecError, match="stop_below needs the draft's logits, which fast logits leave on the device"
    ):
        start(root, pb_utils, speculative_decoding_fast_logits="true", speculation_options='{"stop_below": 0.5}')
    with pytest.raises(TrtspecError, match="stop_bellow"):
        start(root, pb_utils, speculation_options='{"stop_bellow": 0.5}')
    with pytest.raises(TrtspecError, match="unknown speculation method 'grams'"):
        start(root, pb_utils, draft_method="grams")


def test_bls_model_declares_the_tensors_of_the_ensemble() -> None:
    def tensors(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
        config = load_config(model_repository_dir() / name / "config.pbtxt")
        inputs = {one.name: (one.data_type, tuple(one.dims), one.optional) for one in config.input}
        return inputs, {one.name: (one.data_type, tuple(one.dims)) for one in config.output}

    (inputs, outputs), (bls_inputs, bls_outputs) = tensors("ensemble"), tensors("tensorrt_llm_bls")
    added = {name: kind for name, kind in bls_inputs.items() if name not in inputs}
    assert list(added) == ["use_draft_logits", *LOOKAHEAD_SIZES]
    # inputs that an executor of engines lacks, and grammars, which two models do not share
    missing = {"prompt_ignore_length", "num_top_logprobs", "guided_decoding_guide_type", "guided_decoding_guide"}
    assert bls_inputs == {name: kind for name, kind in inputs.items() if name not in missing} | added
    scores = {"generation_logits", "output_log_probs", "cum_log_probs", "top_logprobs", "top_logprob_ids"}
    steps = {"num_draft_steps": (8, (1,)), "accepted_by_position": (8, (-1,))}
    assert bls_outputs == {name: kind for name, kind in outputs.items() if name not in scores} | steps


def counted(pb_utils: Any, name: str, *label: str) -> float:
    return sum(pb_utils.exported[(f"trtspec_{name}", *label)])


def test_metrics_of_a_draft_pair_count_requests_tokens_and_steps(root, pb_utils) -> None:
    [sent, refused] = run(start(root, pb_utils), ask(stream=True), ask("", stream=True))
    last = {name: array.item() for name, array in sent[-1][0].outputs.items() if name != "accepted_by_position"}
    assert refused[0][0].error.code == "invalid"
    told = {name: counted(pb_utils, f"{name}_tokens_total") for name in ("prompt", "generated", "drafted", "accepted")}
    accepted = last["total_accepted_draft_tokens"]
    assert told == {"prompt": 3, "generated": 20, "drafted": last["total_draft_tokens"], "accepted": accepted}
    assert counted(pb_utils, "decode_steps_total") == 20 - accepted
    places = [name for name in pb_utils.exported if name[0] == "trtspec_accepted_tokens_by_position_total"]
    assert sum(counted(pb_utils, "accepted_tokens_by_position_total", place) for _, place in places) == accepted
    assert [counted(pb_utils, "requests_total", reason) for reason in ("length", "refused")] == [1, 1]
    assert (counted(pb_utils, "breaker_open"), counted(pb_utils, "fallbacks_total", "failed")) == (0, 0)


@pytest.mark.slow
def test_metrics_of_a_self_drafting_target_omit_steps_and_positions(root, pb_utils) -> None:
    answer = tokens(*b"abc", total_draft_tokens=[[6]], total_accepted_draft_tokens=[[2]])
    [sent] = run(start(root, pb_utils, lambda *_: [answer], **ALONE), ask(stream=True))
    assert (counted(pb_utils, "drafted_tokens_total"), counted(pb_utils, "accepted_tokens_total")) == (6, 2)
    assert not {"num_draft_steps", "accepted_by_position"} & sent[-1][0].outputs.keys()
    unknown = ("steps", "position", "fallbacks", "breaker")
    assert not [name for name, *_ in pb_utils.exported if any(word in name for word in unknown)]


@pytest.mark.slow
def test_metrics_count_client_disconnects_and_model_failures(root, pb_utils) -> None:
    left = ask(stream=True)

    def serve(model: str, inputs: dict[str, np.ndarray]) -> Iterator[Response]:
        yield tokens(7)
        left.sender.cancelled = True
        pb_utils.models.waits = True

    run(start(root, pb_utils, serve, **ALONE), left)
    for words in ("Failed to process the request(s)", "no"):
        run(start(root, pb_utils, lambda *_, words=words: [response(words)], **ALONE), ask(stream=True))
    assert [counted(pb_utils, "requests_total", reason) for reason in ("cancelled", "error", "refused")] == [1, 1, 1]
