# SPDX-License-Identifier: Apache-2.0
"""The LLM API's repository on a real tritonserver, with a strict double of tensorrt_llm.

Covers the specifics of this engine: arguments, sampling, rejected requests and versions.
"""

from __future__ import annotations

import importlib
import shutil
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from tests.backends.answering import ANSWERS, AnswersFromATable, asked, make_checkpoints, openai_answer
from tests.serving.triton.fakes import make_pb_utils
from tests.serving.triton.serving import DOUBLES, Served, serving
from tests.serving.triton.streams import generate_stream
from trtspec.backends.common.steps import token_models
from trtspec.backends.llmapi.artifact import MODEL_YAML, MODELS
from trtspec.checkpoints.tokenizer import Tokenizer
from trtspec.core.errors import DeployError
from trtspec.engine.generation.request import Stats, Update
from trtspec.serving.triton.client import Client
from trtspec.serving.triton.repository_writer import ServingSettings

pytestmark = pytest.mark.triton

SERVING = ServingSettings(max_batch_size=4)
LIMITS = {"max_input_len": 32, "max_seq_len": 256, "gpu_ids": (1,), "draft_len": 3}
TRTLLM = "1.3.0rc27"


def make_artifact(root: Path, settings: ServingSettings, limits: dict[str, Any] = LIMITS, **arguments: Any) -> None:
    """Write an artifact with table-driven models."""
    make_checkpoints(root)
    documents = {MODEL_YAML.name: yaml.safe_dump(document(settings, limits, **arguments), sort_keys=False)}
    token_models(MODELS, settings, documents, **limits).emit(root / "model_repository")
    # the stub searches the model's directory before any other path that a test can set
    package = root / "model_repository" / MODEL_YAML.parent / "tensorrt_llm"
    shutil.copytree(DOUBLES / "tensorrt_llm_api" / "tensorrt_llm", package)


def document(settings: ServingSettings, limits: dict[str, Any], **changes: Any) -> dict[str, Any]:
    speculation = {"decoding_type": "Eagle3", "max_draft_len": 3, "speculative_model": "../../checkpoints/draft"}
    return {
        "model": "../../checkpoints/target",
        "backend": "pytorch",
        "max_batch_size": settings.max_batch_size,
        "max_input_len": limits["max_input_len"],
        "max_seq_len": limits["max_seq_len"],
        "kv_cache_config": {"free_gpu_memory_fraction": 0.9, "enable_block_reuse": True},
        "speculative_config": speculation,
        "triton_config": {"max_batch_size": settings.max_batch_size, "decoupled": settings.streaming},
        **changes,
    }


@pytest.fixture(scope="module")
def artifact(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("llmapi") / "artifact"
    make_artifact(root, SERVING)
    return root


@pytest.fixture(scope="module")
def served(artifact: Path) -> Iterator[Served]:
    with serving(artifact.parent, artifact / "model_repository", environment={"TRTLLM_DOUBLE": TRTLLM}) as server:
        yield server


@pytest.fixture
def client(served: Served) -> Client:
    return served.client


class TestServed(AnswersFromATable):
    STEPS = 7  # 22 tokens in iterations of three, the first of which is the prefill


@pytest.mark.parametrize(
    ("drafts", "decoding_iter", "reported", "expected"),
    [
        (True, 5, (12, 6), (12, 6, 4)),
        (True, 5, (0, 0), (0, 5, 4)),  # versions before pull 17082 report zeros: unknown, 10 tokens in 1 + 4 iterations
        (True, 5, None, (0, 5, 4)),
        (True, 10, (0, 0), (0, 0, 9)),
        (False, 10, (0, 0), (0, 0, 9)),
        (True, 0, None, (0, 0, 0)),
    ],
)
def test_unreported_drafts_are_counted_by_decoding_iterations(
    drafts: bool, decoding_iter: int, reported: tuple[int, int] | None, expected, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = counted(monkeypatch, reported, decoding_iter, sizes=[10], drafts=drafts)
    assert (found.drafted, found.accepted, found.steps) == expected
    assert found.draft_steps == (found.steps if drafts else 0)
    assert found.accepted_by_position == ()  # a response with the tokens of several iterations has no positions


@pytest.mark.parametrize(("sizes", "positions"), [([1, 3, 1, 4, 1], (2, 2, 1)), ([1, 3, 5, 1], ()), ([4, 1, 3, 1], ())])
def test_positions_follow_from_responses_of_one_iteration_each(
    sizes: list[int], positions: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = counted(monkeypatch, (12, 5), decoding_iter=5, sizes=sizes, drafts=True)
    assert found.accepted_by_position == positions


def counted(
    monkeypatch: pytest.MonkeyPatch,
    reported: tuple[int, int] | None,
    decoding_iter: int,
    sizes: list[int],
    *,
    drafts: bool,
) -> Stats:
    """Return the counts of ten tokens, of which `sizes` came with each response."""
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", make_pb_utils())
    with_counts = importlib.import_module("trtspec.backends.llmapi.served_model").with_counts
    counts = reported and SimpleNamespace(total_draft_tokens=reported[0], total_accepted_draft_tokens=reported[1])
    metrics = SimpleNamespace(speculative_decoding=counts, timing_metrics=None)
    output = SimpleNamespace(token_ids=[7] * 10, request_perf_metrics=metrics)
    result = SimpleNamespace(outputs=[output], decoding_iter=decoding_iter)
    update = Update((7,), "length", Stats(new_tokens=10))
    sys.modules.pop("trtspec.backends.llmapi.served_model")  # imports the stub of this test
    found: Stats = with_counts(update, result, sizes, drafts=drafts).stats
    return found


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        ({}, {"temperature": None, "top_k": None, "top_p": None, "seed": None, "end_id": 0, "ignore_eos": False}),
        ({"temperature": 0.0, "top_k": 5}, {"temperature": None, "top_k": None}),
        ({"temperature": 0.5, "top_p": 1.0, "seed": 7}, {"temperature": 0.5, "top_k": None, "top_p": 1.0, "seed": 7}),
        ({"top_k": 40}, {"temperature": 1.0, "top_k": 40, "top_p": 1.0}),
        ({"top_p": 0.5}, {"temperature": 1.0, "top_k": None, "top_p": 0.5}),
        ({"end_id": -1}, {"end_id": None, "ignore_eos": True}),
        ({"end_id": 9}, {"end_id": 9, "ignore_eos": False}),
    ],
)
def test_request_is_converted_to_llm_sampling_params(request_, expected, client: Client, artifact: Path) -> None:
    client.generate({"text_input": "until", "max_tokens": 5, **request_})
    noted = asked(artifact)[-1]
    assert {key: noted[key] for key in expected} == expected
    assert (noted["max_tokens"], noted["detokenize"], noted["return_perf_metrics"]) == (5, False, True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"repetition_penalty": 1.2}, "repetition_penalty 1.2 is not supported by the LLM API"),
        ({"bad_words": ["x"]}, "bad_words is not supported by the LLM API"),
        ({"return_generation_logits": True}, "return_generation_logits is not supported by the LLM API"),
        (
            {"num_draft_tokens": 2},
            "num_draft_tokens 2 is not supported by the LLM API, whose draft length 3 is the same",
        ),
        ({"guided_decoding_guide": "{}"}, "guided_decoding_guide requires guided_decoding_guide_type"),
        (
            {"guided_decoding_guide_type": "json"},
            "structured output is not supported by this deployment of the LLM API",
        ),
        ({"min_length": 3}, "min_length 3 is not supported by the LLM API"),
        ({"tempreature": 1.0}, "did you mean temperature?"),
        ({"temperature": -1.0}, "temperature is -1.0, expected 0 or more"),
        ({"max_tokens": 1000}, "prompt and max_tokens are 1005 tokens together, at most 256 fit"),
        ({"text_input": "x" * 33}, "the prompt has 33 tokens, expected at most 32"),
        ({"text_input": "unknown"}, "internal error [0-9a-f]{12}: see the server's log under this id"),
    ],
)
def test_failed_request_returns_an_error_and_the_next_is_served(change, message: str, client: Client) -> None:
    request = {"text_input": "until", "max_tokens": 20}
    with pytest.raises(DeployError, match=message):
        client.generate({**request, **change})
    with pytest.raises(DeployError, match=message):
        list(generate_stream(client, {**request, **change}))
    assert client.generate(request)["text_output"] == ANSWERS["until"]


def test_larger_num_draft_tokens_than_the_engines_is_accepted(client: Client) -> None:
    request = {"text_input": "until", "max_tokens": 20, "num_draft_tokens": 3}
    assert client.generate(request)["text_output"] == ANSWERS["until"]


def test_openai_answer_has_the_draft_statistics_that_the_engine_reports(served: Served, artifact: Path) -> None:
    assert openai_answer(served, artifact)["metrics"]["speculative_decoding"] == {
        "mean_acceptance_length": 1 + 9 / 7,
        "draft_acceptance_rate": 0.75,
        "num_spec_steps": 7,
        "num_accepted_draft_tokens": 9,
        "num_draft_tokens": 12,
        "num_spec_tokens": 3,  # no histogram: the double's table does not accept what its responses imply
    }
    refused = openai_answer(served, artifact, num_draft_tokens=1)["error"]
    assert refused["message"].startswith("num_draft_tokens 1 is not supported by the LLM API")
    guided = openai_answer(served, artifact, response_format={"type": "json_object"})["error"]
    assert guided["message"].endswith("build its recipe with serving.structured_output: true")


def test_answer_by_ids_has_the_steps_of_its_drafts(served: Served, artifact: Path) -> None:
    ids = Tokenizer(artifact / "tokenizer").encode("prompt 1")
    request = {"input_ids": ids, "input_lengths": len(ids), "request_output_len": 60, "exclude_input_in_output": True}
    (answer,) = generate_stream(served.client, request | {"streaming": False}, "tensorrt_llm")
    # 22 tokens in iterations of three, the first of which is the prefill, and the last has the end id alone
    assert (answer["num_draft_steps"], answer["accepted_by_position"]) == (7, [6, 6])


GUIDES = [
    ({"guided_decoding_guide_type": "json"}, {"json_object": True}),
    (
        {"guided_decoding_guide_type": "json_schema", "guided_decoding_guide": '{"type":"object"}'},
        {"json": '{"type":"object"}'},
    ),
    ({"guided_decoding_guide_type": "regex", "guided_decoding_guide": "a+"}, {"regex": "a+"}),
    (
        {"guided_decoding_guide_type": "ebnf_grammar", "guided_decoding_guide": 'root ::= "a"'},
        {"grammar": 'root ::= "a"'},
    ),
]


def test_guides_are_converted_to_guided_decoding_params(tmp_path: Path) -> None:
    root, limits = tmp_path / "artifact", LIMITS | {"structured_output": True}
    make_artifact(root, SERVING, limits, guided_decoding_backend="xgrammar")
    request = {"text_input": "until", "max_tokens": 20}
    with serving(tmp_path, root / "model_repository", environment={"TRTLLM_DOUBLE": TRTLLM}) as server:
        for guide, expected in GUIDES:
            assert server.client.generate(request | guide)["text_output"] == ANSWERS["until"]
            guided = asked(root)[-1]["guided_decoding"]
            assert {name: value for name, value in guided.items() if value} == expected
        server.client.generate(request)
        assert asked(root)[-1]["guided_decoding"] is None
        for guide, message in (
            (
                {"guided_decoding_guide_type": "json_schema", "guided_decoding_guide": "{"},
                "the guide is not supported: Expe",
            ),
            ({"guided_decoding_guide_type": "xml"}, "the guide type is 'xml', expected one of json, json_schema"),
            (
                {"guided_decoding_guide_type": "regex", "guided_decoding_guide": "a" * 131073},
                "expected at most 131,072",
            ),
        ):
            with pytest.raises(DeployError, match=message):
                server.client.generate(request | guide)


def test_guide_is_rejected_if_the_llm_api_removed_its_backend(tmp_path: Path) -> None:
    """As it does for models that it cannot guide; their texts would be unconstrained."""
    root = tmp_path / "artifact"
    make_artifact(root, SERVING, LIMITS | {"structured_output": True})
    with (
        serving(tmp_path, root / "model_repository", environment={"TRTLLM_DOUBLE": TRTLLM}) as server,
        pytest.raises(DeployError, match="structured output is not supported by the LLM API for this model"),
    ):
        server.client.generate({"text_input": "until", "max_tokens": 20, "guided_decoding_guide_type": "json"})


def test_version_1_0_without_streaming_rejects_sampling_and_shuts_down(tmp_path: Path) -> None:
    """Version 1.0 accepts only its own spelling, and always decodes greedily."""
    root = tmp_path / "artifact"
    serving_settings = ServingSettings(max_batch_size=2, streaming=False)
    limits = {"max_input_len": 32, "max_seq_len": 64, "greedy_only": True}
    speculation = {"decoding_type": "Eagle", "max_draft_len": 3, "speculative_model_dir": "../../checkpoints/draft"}
    make_artifact(root, serving_settings, limits, speculative_config=speculation)
    models, version = root / "model_repository", {"TRTLLM_DOUBLE": "1.0.0"}
    with serving(tmp_path, models, environment=version, ends_itself=True) as server:
        ask = [{"text_input": f"prompt {number}", "max_tokens": 64 - 8} for number in range(8)]
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(server.client.generate, ask))
        assert [answer["text_output"] for answer in answers] == [ANSWERS[each["text_input"]] for each in ask]
        with pytest.raises(DeployError, match="does not sample from the target's distribution"):
            server.client.generate({**ask[0], "temperature": 0.7, "top_p": 1.0})
        with pytest.raises(DeployError, match="stream is not supported by this repository"):
            server.client.generate({**ask[0], "stream": True})
        assert server.client.generate({**ask[0], "top_k": 1})["text_output"] == ANSWERS["prompt 0"]
    assert asked(root)[-1] == {"event": "shutdown"}


def test_unsupported_llm_argument_prevents_loading_the_model(tmp_path: Path) -> None:
    root = tmp_path / "artifact"
    make_artifact(root, SERVING)
    path = root / "model_repository" / MODEL_YAML
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), "max_sequence_len": 64}))
    with (
        pytest.raises(AssertionError, match=r"max_sequence_len\\n  Extra inputs are not permitted"),
        serving(tmp_path, root / "model_repository", environment={"TRTLLM_DOUBLE": TRTLLM}),
    ):
        pass


def test_queue_of_tensorrt_llm_is_read_if_its_statistics_are_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", make_pb_utils())
    model = importlib.import_module("trtspec.backends.llmapi.served_model").TritonPythonModel()
    sys.modules.pop("trtspec.backends.llmapi.served_model")  # imports the stub of this test
    iterations = [[{"numQueuedRequests": 5}, {"numQueuedRequests": 2}], [], [{"numQueuedRequests": 0}]]
    model.llm = SimpleNamespace(get_stats=lambda timeout: iterations.pop(0))
    model.reports_queue, model.queued = False, 0
    assert model.engine_queue() is None
    model.reports_queue = True
    assert [model.engine_queue() for _ in range(3)] == [2, 2, 0]
