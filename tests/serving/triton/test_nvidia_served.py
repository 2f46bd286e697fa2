# SPDX-License-Identifier: Apache-2.0
"""`serving.defaults: nvidia` on a real tritonserver, with requests as NVIDIA's clients send them.

The tensors and their shapes are from triton-inference-server/tensorrtllm_backend:inflight_batcher_llm/client/
{end_to_end_grpc_client,inflight_batcher_llm_client}.py@c2e65b88.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from queue import Queue
from typing import Any

import numpy as np
import pytest

from tests.serving.triton.artifact import SERVING, emit_repository, make_artifact
from tests.serving.triton.serving import Served, serving
from trtspec.checkpoints.tokenizer import Tokenizer
from trtspec.core.errors import DeployError
from trtspec.serving.triton.nvidia_compat import NVIDIA

pytestmark = pytest.mark.triton

PROMPT = "What is machine learning?"
TOKENS = 12
ANSWER_S = 60.0


@dataclass
class Nvidia:
    """A server whose models have NVIDIA's defaults, and its tokenizer."""

    served: Served
    tokenizer: Tokenizer

    def stream(self, model: str, inputs: dict[str, np.ndarray], outputs: list[str], request_id: str = "") -> list[Any]:
        """Return the results of a request, collected as in the clients' loop."""
        from tritonclient import grpc
        from tritonclient.utils import np_to_triton_dtype

        asked, answers = [], Queue[Any]()
        for name, array in inputs.items():
            asked.append(grpc.InferInput(name, array.shape, np_to_triton_dtype(array.dtype)))
            asked[-1].set_data_from_numpy(array)
        with grpc.InferenceServerClient(f"127.0.0.1:{self.served.grpc}") as client:
            client.start_stream(callback=lambda result, error: answers.put(error or result))
            wanted = [grpc.InferRequestedOutput(name) for name in outputs]
            client.async_stream_infer(model, asked, outputs=wanted, request_id=request_id)
            client.stop_stream()
        return [answers.get_nowait() for _ in range(answers.qsize())]


@pytest.fixture(scope="module")
def nvidia(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nvidia]:
    root = make_artifact(tmp_path_factory.mktemp("nvidia") / "artifact")
    shutil.rmtree(root / "model_repository")
    emit_repository(root / "model_repository", replace(SERVING, defaults=NVIDIA))
    with serving(root.parent, root / "model_repository") as served:
        yield Nvidia(served, Tokenizer(root / "tokenizer"))


def one(value: Any, dtype: Any) -> np.ndarray:
    return np.array([[value]]).astype(dtype)


def in_text(**more: np.ndarray) -> dict[str, np.ndarray]:
    """Return the default tensors of end_to_end_grpc_client: one sequence, one beam, temperature 1."""
    return {
        "text_input": one(PROMPT, object),
        "max_tokens": one(TOKENS, np.int32),
        "beam_width": one(1, np.int32),
        "temperature": one(1.0, np.float32),
        "num_return_sequences": one(1, np.int32),
        "stream": one(False, bool),
        **more,
    }


def in_ids(nvidia: Nvidia, **more: np.ndarray) -> dict[str, np.ndarray]:
    ids = nvidia.tokenizer.encode(PROMPT)
    return {
        "input_ids": np.array([ids], np.int32),
        "input_lengths": one(len(ids), np.int32),
        "request_output_len": one(TOKENS, np.int32),
        "beam_width": one(1, np.int32),
        "temperature": one(1.0, np.float32),
        "streaming": one(False, bool),
        **more,
    }


def text_of(results: list[Any]) -> str:
    """Return the text as the client joins it: `output[0].decode()` of each result."""
    return "".join(result.as_numpy("text_output")[0].decode() for result in results)


def test_whole_response_includes_the_prompt_but_a_stream_does_not(nvidia: Nvidia) -> None:
    [whole] = nvidia.stream("ensemble", in_text(), ["text_output"])
    assert whole.as_numpy("text_output").shape == (1,)
    new = text_of(nvidia.stream("ensemble", in_text(stream=one(True, bool)), ["text_output"]))
    assert text_of([whole]) == PROMPT + new
    without = nvidia.stream("ensemble", in_text(exclude_input_in_output=one(True, bool)), ["text_output"])
    assert text_of(without) == new, "a temperature alone is greedy"


def test_all_outputs_requested_by_the_nvidia_client_are_accepted(nvidia: Nvidia) -> None:
    """With return_perf_metrics the client also names KV cache and time outputs, which our engines do not report."""
    names = ["acceptance_rate", "total_accepted_draft_tokens", "total_draft_tokens"]
    silent = ["kv_cache_alloc_new_blocks", "arrival_time_ns", "last_token_time_ns", "batch_index", "context_logits"]
    asked = in_text(return_perf_metrics=one(True, bool), return_log_probs=one(True, bool))
    [result] = nvidia.stream("ensemble", asked, ["text_output", "cum_log_probs", "output_log_probs", *names, *silent])
    assert result.as_numpy("output_log_probs").shape == (1, 1, TOKENS)
    assert all(result.as_numpy(name).shape == (1, 1) for name in (*names, "cum_log_probs"))
    assert [result.as_numpy(name) for name in silent] == [None] * len(silent)


def test_neutral_inputs_are_accepted_and_unsupported_ones_rejected_by_name(nvidia: Nvidia) -> None:
    empty = {
        "embedding_bias_words": np.empty((1, 0), object),
        "embedding_bias_weights": np.empty((1, 0), np.float32),
        "stop_words": np.array([[""]], object),
        "bad_words": np.array([[""]], object),
        "repetition_penalty": one(1.0, np.float32),
        "prompt_vocab_size": one(0, np.int32),
    }
    [plain], [neutral] = (nvidia.stream("ensemble", in_text(**more), ["text_output"]) for more in ({}, empty))
    assert text_of([neutral]) == text_of([plain])
    for model, asked, name in (
        ("ensemble", in_text(lora_task_id=one(3, np.uint64)), "lora_task_id"),
        ("tensorrt_llm", in_ids(nvidia, lora_task_id=one(3, np.uint64)), "lora_task_id"),
    ):
        [refused] = nvidia.stream(model, asked, [])
        assert f"{name} is not supported" in refused.message()


def test_output_ids_include_the_prompt_and_end_only_at_a_given_end_id(nvidia: Nvidia) -> None:
    ids = nvidia.tokenizer.encode(PROMPT)
    [whole] = nvidia.stream("tensorrt_llm", in_ids(nvidia), ["output_ids", "sequence_length"])
    assert whole.as_numpy("sequence_length").tolist() == [[len(ids) + TOKENS]]
    made = whole.as_numpy("output_ids")[0, 0].tolist()
    assert made[: len(ids)] == ids
    new = made[len(ids) :]
    at = next(place for place in range(1, TOKENS) if new[place] not in new[:place])
    ended = in_ids(nvidia, end_id=one(new[at], np.int32), exclude_input_in_output=one(True, bool))
    [cut] = nvidia.stream("tensorrt_llm", ended, ["output_ids", "sequence_length"])
    assert cut.as_numpy("output_ids")[0, 0, : int(cut.as_numpy("sequence_length").item())].tolist() == new[:at]


def test_stop_request_ends_the_request_with_the_same_id_without_error(nvidia: Nvidia) -> None:
    long = in_ids(nvidia, streaming=one(True, bool), request_output_len=one(100, np.int32))
    stop = {
        "input_ids": np.empty((1, 1), np.int32),
        "input_lengths": one(0, np.int32),
        "request_output_len": one(0, np.int32),
        "stop": one(True, bool),
    }
    found: list[list[Any]] = []
    running = threading.Thread(target=lambda: found.append(nvidia.stream("tensorrt_llm", long, ["output_ids"], "7")))
    running.start()
    while running.is_alive():  # unbounded: a text of 100 tokens ends by itself
        nvidia.stream("tensorrt_llm", stop, [], "7")
    running.join(ANSWER_S)
    [results] = found
    assert all(result.as_numpy("output_ids") is not None for result in results), "no error"


def test_request_without_required_inputs_is_rejected_by_name(nvidia: Nvidia) -> None:
    asked = {name: array for name, array in in_ids(nvidia).items() if name != "input_ids"}
    [refused] = nvidia.stream("tensorrt_llm", asked, [])
    assert "the request lacks input_ids" in refused.message()
    with pytest.raises(DeployError, match="max_tokens"):
        nvidia.served.client.generate({"text_input": PROMPT}, "ensemble")
