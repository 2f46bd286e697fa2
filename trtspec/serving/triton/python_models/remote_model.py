# SPDX-License-Identifier: Apache-2.0
"""Another model of the same server: calls to tensors and tensors to answers, and its process if that is stopped."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from trtspec.engine.generation.request import SamplingOptions
from trtspec.serving.triton.python_models.bls import Array, ModelAnswer, ModelCall
from trtspec.serving.triton.python_models.grpc_client import (
    LONGEST_TEXT_S,
    ModelError,
    ReconnectingStream,
    infer_request,
    output_arrays,
)
from trtspec.serving.triton.python_models.tensors import encode_token_lists

STUB = b"triton_python_backend_stub"
STOPPED = ("T", "t")
STATE, PARENT = 0, 1  # fields of /proc/PID/stat after the process name


def kill_stopped(model: str) -> list[int]:
    """Kill the stopped processes of a model and return their ids.

    tritonserver aborts if it waits some seconds for a lock held by a stopped process; of a dead process it only reports
    that the model is not healthy.
    """
    ended = []
    for process in _processes(model):
        with suppress(OSError, IndexError):
            fields = (process / "stat").read_text().rpartition(")")[2].split()
            if fields[STATE] in STOPPED and int(fields[PARENT]) == os.getppid():
                os.kill(int(process.name), signal.SIGKILL)
                ended.append(int(process.name))
    return ended


def _processes(model: str) -> Iterator[Path]:
    wanted = f"/{model}/".encode()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            command = (process / "cmdline").read_bytes()
            if STUB in command and wanted in command:
                yield process


COUNTS = ("total_draft_tokens", "total_accepted_draft_tokens")
LOOKAHEAD_SIZES = ("lookahead_window_size", "lookahead_ngram_size", "lookahead_verification_set_size")


class ServerModel:
    """A model with the tensors of NVIDIA's tensorrt_llm; all calls of one completion share a line."""

    def __init__(self, line: ReconnectingStream, name: str, timeout_s: float = LONGEST_TEXT_S) -> None:
        self._line = line
        self._name = name
        self._timeout_s = timeout_s

    def __call__(self, call: ModelCall) -> Iterator[ModelAnswer]:
        """Yield the model's answers; raises ModelError with its message if it fails or times out.

        A caller that stops early must close the line.
        """
        counted = (0, 0)
        try:
            for response in self._line.ask(self._request(call), self._timeout_s):
                if outputs := output_arrays(response.infer_response):
                    answer, counted = read_answer(outputs, counted)
                    yield answer
        except ModelError as error:
            raise ModelError(error.message, error.status, where=self._name) from None

    def _request(self, call: ModelCall) -> Any:
        wanted = ["output_ids", "sequence_length"]
        wanted += ["generation_logits"] if call.wants_logits else []
        wanted += COUNTS if call.wants_counts else []
        return infer_request(self._name, tensors(call), wanted)


def read_answer(outputs: Mapping[str, Array], counted: tuple[int, int]) -> tuple[ModelAnswer, tuple[int, int]]:
    """Return the answer in one response, and the cumulative draft counts, which were `counted` before it.

    A model counts from the start of a request, an answer from the previous one.
    """
    length = int(outputs["sequence_length"].reshape(-1)[0])
    logits = outputs.get("generation_logits")
    drafted, accepted = (
        int(outputs[name].item()) if name in outputs else before for name, before in zip(COUNTS, counted, strict=True)
    )
    answer = ModelAnswer(
        outputs["output_ids"][0, 0, :length].tolist(),
        None if logits is None else logits[0, 0],
        drafted - counted[0],
        accepted - counted[1],
    )
    return answer, (drafted, accepted)


def tensors(call: ModelCall) -> list[tuple[str, Array]]:
    """Return the tensors of a call, with a batch dimension of 1."""
    named = [
        ("input_ids", np.array([call.text], np.int32)),
        ("input_lengths", np.array([[len(call.text)]], np.int32)),
        ("request_output_len", np.array([[call.new_tokens]], np.int32)),
        ("end_id", np.array([[call.end_id]], np.int32)),
        ("exclude_input_in_output", np.array([[True]])),
        ("streaming", np.array([[call.streams]])),
        ("return_generation_logits", np.array([[call.wants_logits]])),
        ("return_perf_metrics", np.array([[call.wants_counts]])),
        *((name, np.array([[size]], np.int32)) for name, size in zip(LOOKAHEAD_SIZES, call.lookahead, strict=False)),
        *_sampling(call.sampling),
        *call.passed,
    ]
    if call.stop_words:
        named.append(("stop_words_list", encode_token_lists(call.stop_words)[None]))
    if call.draft.ids:
        named.append(("draft_input_ids", np.array([call.draft.ids], np.int32)))
        if call.draft.logits is not None:
            named.append(("draft_logits", call.draft.logits[None]))
    return named


def _sampling(sampling: SamplingOptions) -> list[tuple[str, Array]]:
    """Return all sampling tensors, because the executor's defaults differ from trtspec's."""
    greedy = sampling.greedy
    return [
        ("temperature", np.array([[1.0 if greedy else sampling.temperature]], np.float32)),
        ("runtime_top_k", np.array([[1 if greedy else sampling.top_k]], np.int32)),
        ("runtime_top_p", np.array([[1.0 if greedy else sampling.top_p]], np.float32)),
        ("seed", np.array([[sampling.seed]], np.uint64)),
    ]
