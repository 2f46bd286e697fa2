# SPDX-License-Identifier: Apache-2.0
"""tensorrt_llm_bls and the models it asks, without a server: its tensors, and what goes wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.triton.artifact import make_tokenizer
from tests.triton.fakes import FINAL, Request, Tensor, load_model, make_pb_utils, model_args
from trtspec.checkpoint.tokenizer import Tokenizer
from trtspec.errors import TrtspecError
from trtspec.paths import model_repository_dir
from trtspec.triton.bls import Answer, Call, Draft, Sampling
from trtspec.triton.config import load_config
from trtspec.triton.server_model import ServerModel

SCRIPT = "The target says né, whatever it is asked."


class Named(Tensor):
    """A tensor as one model hands it to another."""

    def __init__(self, tensor_name: str, array: np.ndarray) -> None:
        super().__init__(tensor_name, array)
        self.name = lambda: tensor_name


class Response:
    def __init__(self, error: str = "", **outputs: Any) -> None:
        self.message = error
        self.outputs = [Named(name, np.array(value)) for name, value in outputs.items()]

    def has_error(self) -> bool:
        return bool(self.message)

    def error(self) -> Any:
        return type("Error", (), {"message": lambda _: self.message})()

    def output_tensors(self) -> list[Named]:
        return self.outputs


def tokens(*ids: int, padding: int = 0, **outputs: Any) -> Response:
    return Response(output_ids=[[[*ids, *[9] * padding]]], sequence_length=[[len(ids)]], **outputs)


Serve = Callable[[str, dict[str, np.ndarray]], list[Response]]


def with_models(pb_utils: Any, serve: Serve) -> list[Any]:
    """Give `pb_utils` requests to other models, which `serve` answers; returns those that were made."""
    made: list[Any] = []

    class InferenceRequest:
        def __init__(self, model_name: str, inputs: list[Tensor], requested_output_names: list[str]) -> None:
            self.model, self.inputs = model_name, {tensor.name: tensor.array for tensor in inputs}
            self.outputs, self.left = requested_output_names, 0
            made.append(self)

        def exec(self, decoupled: bool) -> Iterator[Response]:
            assert decoupled
            responses = serve(self.model, self.inputs)
            self.left = len(responses)
            return self.each(responses)

        def each(self, responses: list[Response]) -> Iterator[Response]:
            for response in responses:
                self.left -= 1
                yield response

    pb_utils.InferenceRequest = InferenceRequest
    return made


CALL = Call([5, 6], 3, Sampling(0.7, top_k=4, top_p=0.9, seed=2**64 - 1))


def asked(call: Call, *responses: Response) -> tuple[Any, list[Answer]]:
    pb_utils = make_pb_utils()
    made = with_models(pb_utils, lambda *_: list(responses))
    answers = list(ServerModel(pb_utils, "m")(call))
    return made[0], answers


def test_a_call_is_tensors_of_one_request() -> None:
    logits = np.zeros((2, 7), np.float32)
    request, answers = asked(
        Call(CALL.text, 3, CALL.sampling, draft=Draft([1, 2], logits), wants_logits=True),
        tokens(1, 2, 3, generation_logits=np.ones((1, 1, 3, 7))),
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


def test_a_call_says_no_more_than_it_means() -> None:
    request, _ = asked(Call([5], 1, Sampling(0.9, top_k=1)), tokens(1))
    assert request.outputs == ["output_ids", "sequence_length"]
    assert not {"draft_input_ids", "draft_logits"} & set(request.inputs)
    greedy = [request.inputs[name].item() for name in ("temperature", "runtime_top_k", "runtime_top_p")]
    assert greedy == [1.0, 1, 1.0]


def test_padding_and_empty_responses_are_no_tokens() -> None:
    _, answers = asked(CALL, tokens(1, padding=2), tokens(), Response())
    assert [answer.ids for answer in answers] == [[1], []]


def test_what_a_model_refuses_is_said_in_its_words_and_nothing_is_left_waiting() -> None:
    pb_utils = make_pb_utils()
    made = with_models(pb_utils, lambda *_: [Response(error="too long"), tokens(1)])
    with pytest.raises(TrtspecError, match="m: too long"):
        list(ServerModel(pb_utils, "m")(CALL))
    assert made[0].left == 0


def test_whoever_stops_early_leaves_nothing_waiting() -> None:
    pb_utils = make_pb_utils()
    made = with_models(pb_utils, lambda *_: [tokens(1), tokens(2), tokens(3)])
    answers = ServerModel(pb_utils, "m")(CALL)
    next(iter(answers))
    answers.close()
    assert made[0].left == 0


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("artifact")
    make_tokenizer(folder / "tokenizer")
    return folder


@pytest.fixture
def pb_utils() -> Any:
    return make_pb_utils()


def scripted(tokenizer: Tokenizer, prompt: str) -> Serve:
    """Return a server whose target follows the script, and whose draft does so but for every third token."""
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
    """Return the model, told to run in an artifact at `root`, with one thread."""
    module = load_model("tensorrt_llm_bls", pb_utils)
    with_models(pb_utils, serve or scripted(Tokenizer(root / "tokenizer"), "Hé"))
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
    return [[(response, flags == FINAL) for response, flags in request.sender.sent] for request in requests]


def test_a_stream_sends_whole_characters_and_ends_with_its_counts(root, pb_utils) -> None:
    [sent] = run(start(root, pb_utils), ask(stream=True))
    pieces = [response.outputs["text_output"].item().decode() for response, _ in sent]
    ids = len(Tokenizer(root / "tokenizer").encode(SCRIPT[: len("".join(pieces))]))
    assert SCRIPT.startswith("".join(pieces))
    assert (len(pieces) > 3, ids, [final for _, final in sent]) == (True, 20, [False] * (len(sent) - 1) + [True])
    last = {name: array.item() for name, array in sent[-1][0].outputs.items()}
    assert (last["num_input_tokens"], last["num_output_tokens"], last["sequence_index"]) == (3, 20, 0)
    assert 0 < last["total_accepted_draft_tokens"] < last["total_draft_tokens"]
    assert last["acceptance_rate"] == pytest.approx(last["total_accepted_draft_tokens"] / last["total_draft_tokens"])


def test_without_stream_there_is_one_response(root, pb_utils) -> None:
    [[(response, final)]] = run(start(root, pb_utils), ask())
    assert (response.outputs["text_output"].item().decode(), final) == (SCRIPT[:19], True)
    assert response.outputs["sequence_length"].item() == 20


def test_a_client_that_left_gets_no_more_steps(root, pb_utils) -> None:
    calls: list[str] = []
    request = ask(stream=True)

    def serve(model: str, inputs: dict[str, np.ndarray]) -> list[Response]:
        calls.append(model)
        request.sender.cancelled = len(calls) > 3
        return [tokens(7)]

    [sent] = run(start(root, pb_utils, serve), request)
    assert sent[-1][0].error.code == "cancelled"
    assert sent[-1][1] is True
    assert len(calls) == 4


def test_a_bug_in_one_request_is_logged_and_the_next_is_served(root, pb_utils) -> None:
    tokenizer = Tokenizer(root / "tokenizer")
    good, broken = scripted(tokenizer, "Hé"), tokenizer.encode("b")[0]

    def serve(model: str, inputs: dict[str, np.ndarray]) -> list[Response]:
        return [1 / 0] if inputs["input_ids"][0, 0] == broken else good(model, inputs)

    [[(bad, _)], [(fine, _)]] = run(start(root, pb_utils, serve), ask("b"), ask())
    assert bad.error.message.startswith("internal error, the server's log has more: ZeroDivisionError")
    assert fine.outputs["text_output"].item().decode() == SCRIPT[:19]
    assert "ZeroDivisionError" in pb_utils.logged[0]


def test_what_the_repository_cannot_mean_is_refused_when_it_is_loaded(root, pb_utils) -> None:
    with pytest.raises(
        TrtspecError, match="stop_below needs the draft's logits, which fast logits leave on the device"
    ):
        start(root, pb_utils, speculative_decoding_fast_logits="true", speculation_options='{"stop_below": 0.5}')
    with pytest.raises(TrtspecError, match="stop_bellow"):
        start(root, pb_utils, speculation_options='{"stop_bellow": 0.5}')
    with pytest.raises(TrtspecError, match="unknown speculation method 'grams'"):
        start(root, pb_utils, draft_method="grams")


def test_its_ensemble_has_the_tensors_of_the_other_ensemble() -> None:
    def tensors(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
        config = load_config(model_repository_dir() / name / "config.pbtxt")
        inputs = {one.name: (one.data_type, tuple(one.dims), one.optional) for one in config.input}
        return inputs, {one.name: (one.data_type, tuple(one.dims)) for one in config.output}

    (inputs, outputs), (bls_inputs, bls_outputs) = tensors("ensemble"), tensors("ensemble_bls")
    added = {name: kind for name, kind in bls_inputs.items() if name not in inputs}
    assert list(added) == ["use_draft_logits"]
    assert bls_inputs == inputs | added
    assert bls_outputs == outputs
    assert tensors("tensorrt_llm_bls") == (bls_inputs, bls_outputs)
