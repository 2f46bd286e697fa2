# SPDX-License-Identifier: Apache-2.0
"""LLM and SamplingParams of NVIDIA/TensorRT-Edge-LLM:experimental/server@0.11.0, with the parts used here.

Responses come from answers.json in the model's directory: a list of text pieces per prompt, one token per piece.
`LLM.asked` records the parameters of requests.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from experimental.server.runtime.engine_build import BuildOptions, bundle_cache_path


@dataclass
class SamplingParams:
    temperature: float = 0.7
    top_p: float = 0.9
    top_k: int = 50
    seed: int | None = None
    max_tokens: int = 2048
    enable_thinking: bool = False
    reasoning_effort: str = ""
    disable_spec_decode: bool = False
    num_logprobs: int = 0
    stop: list[str] = field(default_factory=list)
    logit_bias: dict[int, float] = field(default_factory=dict)
    guided_decoding: tuple[str, str] | None = None
    skip_special_tokens: bool = True
    reuse_context: bool = True
    cache_generated_tokens: bool = True


@dataclass
class StreamDelta:
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    prompt_tokens: int | None = None
    finished: bool = False
    finish_reason: str | None = None


class Deltas:
    """A closable iterator, as the engine's own."""

    def __init__(self, deltas: Iterator[StreamDelta]) -> None:
        self.deltas, self.closed = deltas, False

    def __iter__(self) -> Deltas:
        return self

    def __next__(self) -> StreamDelta:
        if self.closed:
            raise StopIteration
        return next(self.deltas)

    def close(self) -> None:
        self.closed = True


@dataclass
class GuidedDecodingParams:
    type: str
    guide: str = ""


class NativeRuntime:
    """The functions of the native module `_edgellm_runtime` that concern grammars."""

    GuidedDecodingParams = GuidedDecodingParams

    @staticmethod
    def validate_guided_decoding_params(params: GuidedDecodingParams) -> tuple[bool, str]:
        if params.type == "JSON_SCHEMA":
            try:
                json.loads(params.guide)
            except ValueError as error:
                return False, f"guided_decoding.json_schema is not valid JSON: {error}"
        return True, ""


class LLM:
    def __init__(
        self,
        model: str,
        *,
        cache_dir: str = "",
        engine_cache_max_size_gb: float = 50.0,
        clear_engine_cache: bool = False,
        max_input_len: int = 4096,
        max_batch_size: int = 1,
        max_kv_cache_capacity: int = 8192,
        max_image_tokens: int | None = None,
        max_image_tokens_per_image: int | None = None,
        draft_top_k: int | None = None,
        draft_step: int | None = None,
        verify_tree_size: int | None = None,
        max_verify_tree_size: int | None = None,
        max_draft_tree_size: int | None = None,
        build_options: BuildOptions | None = None,
        speculative_config: Any = None,
        context_cache_config: Any = None,
        enable_in_flight_batching: bool = False,
    ) -> None:
        if speculative_config and enable_in_flight_batching:
            raise ValueError("speculative decoding is not supported under in-flight batching")
        assert build_options is not None
        self.bundle_dir = bundle_cache_path(model, cache_dir, build_options)
        if not Path(self.bundle_dir).is_dir():
            raise RuntimeError("it would be built now")
        self.table = json.loads((Path(model) / "answers.json").read_text())
        self.asked: list[tuple[SamplingParams, dict[str, Any]]] = []
        self.given: list[Deltas] = []
        self.closed = False
        self._rt = NativeRuntime

    def _make_generation_request(
        self,
        messages: list[dict[str, Any]],
        params: SamplingParams,
        *,
        tools: Any = None,
        tool_choice: Any = None,
        tool_config: Any = None,
        apply_chat_template: bool = True,
        add_generation_prompt: bool = True,
        stream_channel: Any = None,
    ) -> dict[str, Any]:
        return {"messages": messages, "template": apply_chat_template, "prompt": add_generation_prompt}

    def generate_stream(
        self,
        messages: list[dict[str, Any]],
        sampling_params: SamplingParams | None = None,
        *,
        tools: Any = None,
        tool_choice: Any = None,
        prebuilt_request: dict[str, Any] | None = None,
    ) -> Deltas:
        assert sampling_params is not None
        assert prebuilt_request is not None
        self.asked.append((sampling_params, prebuilt_request))
        [message] = prebuilt_request["messages"]
        pieces = self.table[message["content"]]
        self.given.append(Deltas(self._deltas(pieces, sampling_params.max_tokens, len(message["content"]))))
        return self.given[-1]

    def _deltas(self, pieces: list[str], most: int, prompt_tokens: int) -> Iterator[StreamDelta]:
        for number, piece in enumerate(pieces[:most]):
            last = number + 1 == min(most, len(pieces))
            reason = ("length" if most < len(pieces) else "stop") if last else None
            if piece == "ERROR":
                last, reason = True, "error"
            yield StreamDelta(piece, [number], prompt_tokens, last, reason)

    def close(self) -> None:
        self.closed = True
