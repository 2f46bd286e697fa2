# SPDX-License-Identifier: Apache-2.0
"""LLM and SamplingParams with checked arguments; responses come from answers.json in the model's directory.

The table maps a prompt's ids, joined by spaces, to its response: {"steps": [[ids], ...], "drafted": n, "accepted": n,
"pause_s": seconds before each step, "queue_s": seconds before the first}. requests.jsonl there records the parameters
and the end of each running request.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tensorrt_llm.llmapi.llm_args import IS_OLD, DecodingBaseConfig, TorchLlmArgs
from tensorrt_llm.sampling_params import GuidedDecodingParams


@dataclass(kw_only=True)
class SamplingParams:
    max_tokens: int = 32
    end_id: int | None = None
    pad_id: int | None = None
    ignore_eos: bool = False
    stop_token_ids: list[int] | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None
    detokenize: bool = True
    return_perf_metrics: bool = False
    guided_decoding: GuidedDecodingParams | None = None

    def __post_init__(self) -> None:
        if self.guided_decoding is not None:
            self.guided_decoding.validate()
        if self.end_id is None and not self.ignore_eos:
            raise ValueError("end_id must be set")
        if self.top_k is not None and self.top_k < 0:
            raise ValueError(f"require top_k >= 0, got top_k={self.top_k}")
        if self.top_p is not None and not 0 <= self.top_p <= 1:
            raise ValueError(f"require 0 <= top_p <= 1, got top_p={self.top_p}")

    @property
    def is_greedy(self) -> bool:
        return not self.temperature


class RequestError(RuntimeError):
    """The exception of the same name in tensorrt_llm."""


class LLM:
    def __init__(self, **arguments: Any) -> None:
        if IS_OLD and isinstance(arguments.get("speculative_config"), dict):
            raise ValueError("speculative_config has to be made first")
        self.args = self.arguments = TorchLlmArgs(**arguments)
        self.root = Path(self.arguments.model)
        speculation: DecodingBaseConfig | None = self.arguments.speculative_config
        draft = getattr(speculation, "speculative_model", getattr(speculation, "speculative_model_dir", None))
        for directory in filter(None, (self.arguments.model, draft)):
            if not Path(directory).is_dir():
                raise FileNotFoundError(f"no such model: {directory}")
        self.table = json.loads((self.root / "answers.json").read_text())
        self.drafts = speculation is not None

    def generate_async(
        self, inputs: list[int], sampling_params: SamplingParams, *, streaming: bool = False
    ) -> GenerationResult:
        asyncio.get_running_loop()  # without a running loop, the queue of results cannot be awaited
        if not (isinstance(inputs, list) and all(isinstance(token, int) for token in inputs)):
            raise TypeError("inputs are a list of token ids")
        if len(inputs) > self.arguments.max_input_len:
            raise ValueError(f"The prompt has {len(inputs)} tokens, max_input_len is {self.arguments.max_input_len}")
        if sampling_params.guided_decoding is not None and self.arguments.guided_decoding_backend is None:
            raise ValueError("`guided_decoding_backend` is not set, but guided decoding is requested.")
        return GenerationResult(self, inputs, sampling_params, streaming)

    def note(self, event: dict[str, Any]) -> None:
        with (self.root / "requests.jsonl").open("a") as log:
            log.write(json.dumps(event) + "\n")

    def shutdown(self) -> None:
        self.note({"event": "shutdown"})


@dataclass
class CompletionOutput:
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    request_perf_metrics: Any = None


class GenerationResult:
    """Yields itself after each step; `outputs[0].token_ids` has all tokens so far."""

    def __init__(self, llm: LLM, prompt: list[int], asked: SamplingParams, streaming: bool) -> None:
        self.llm, self.asked, self.streaming = llm, asked, streaming
        self.answer = llm.table.get(" ".join(map(str, prompt)))
        self.outputs = [CompletionOutput()]
        self.finished = False
        self.decoding_iter = 0
        self._waiting = list(self.answer["steps"]) if self.answer else []
        llm.note({"event": "asked", "prompt": prompt, **asdict(asked)})

    def __aiter__(self) -> GenerationResult:
        return self

    async def __anext__(self) -> GenerationResult:
        if self.finished:
            raise StopAsyncIteration
        if self.answer is None:
            raise RequestError("no answer is known for this prompt")
        try:
            if self.asked.guided_decoding is not None:
                self.asked.guided_decoding.compile()
        except ValueError as error:
            raise RequestError(f"Guided decoding error: {error}") from None
        while not self.finished:
            await asyncio.sleep(self.answer.get("pause_s", 0.0))
            self._step()
            if self.streaming:
                break
        return self

    def abort(self) -> None:
        if self.finished:
            raise RuntimeError("a finished request cannot be aborted")
        self.finished = True
        self.llm.note({"event": "aborted"})

    def _step(self) -> None:
        output, asked = self.outputs[0], self.asked
        self.decoding_iter += 1  # the prefill's iteration too
        ends = set() if asked.ignore_eos else {asked.end_id, *(asked.stop_token_ids or ())}
        for token in self._waiting.pop(0):
            output.token_ids.append(token)
            self.finished = token in ends or len(output.token_ids) == asked.max_tokens
            if self.finished:
                output.finish_reason = "stop" if token in ends else "length"
                break
        self.finished = self.finished or not self._waiting
        if self.finished and asked.return_perf_metrics:
            output.request_perf_metrics = self._perf_metrics()

    def _perf_metrics(self) -> Any:
        began = timedelta(seconds=1000)
        times = {"arrival_time": began, "first_scheduled_time": began + timedelta(seconds=self.answer["queue_s"])}
        drafts = None
        if self.llm.drafts:
            counts = {
                "total_draft_tokens": self.answer["drafted"],
                "total_accepted_draft_tokens": self.answer["accepted"],
            }
            drafts = SimpleNamespace(**counts)
        return SimpleNamespace(speculative_decoding=drafts, timing_metrics=SimpleNamespace(**times))
