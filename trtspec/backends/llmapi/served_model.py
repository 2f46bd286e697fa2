# SPDX-License-Identifier: Apache-2.0
"""Triton model that generates token ids with TensorRT-LLM's LLM API; model.yaml in its directory has the arguments.

The LLM API matches stop words by token ids, but the same text can consist of other tokens. Stop words are therefore
matched in this model.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from trtspec.core.errors import TrtspecError
from trtspec.engine.generation.request import EngineRequest, Update
from trtspec.engine.generation.request_state import DecodingStep, RunningRequest
from trtspec.serving.triton.python_models import metrics as known
from trtspec.serving.triton.python_models.async_engine_model import (
    AsyncEngineModel,
    resolve_model_path,
    unless_cancelled,
)
from trtspec.serving.triton.python_models.tensors import Settings

PATH_KEYS = ("speculative_model", "speculative_model_dir", "confidence_cost_table_path", "confidence_calibration_path")


class TritonPythonModel(AsyncEngineModel):
    """The model class that Triton loads."""

    NAME, DECIDES = "the LLM API", "model.yaml"
    METRICS = (*known.OF_TEXTS, *known.OF_QUEUE, *known.OF_DRAFTS, *known.OF_STEPS)
    GPU_VARIABLES = ("CUDA_VISIBLE_DEVICES", "TRTLLM_VISIBLE_DEVICES")

    def start_engine(self, root: Path, version: int, settings: Settings) -> None:
        from tensorrt_llm import LLM
        from tensorrt_llm.llmapi.llm_utils import update_llm_args_with_extra_dict

        self.greedy_only = settings.parameter("greedy_only") == "true"
        # versions up to 1.2 need TensorRT-LLM's own function to construct the sections
        arguments = read_arguments(root, version, settings)
        self.drafts = "speculative_config" in arguments
        self.llm = LLM(**update_llm_args_with_extra_dict({}, arguments))

    def end_engine(self) -> None:
        self.llm.shutdown()

    def check(self, asked: EngineRequest) -> None:
        if self.greedy_only and not asked.sampling.greedy:
            hint = "set temperature to 0, or serve with TensorRT-LLM 1.3 or later"
            raise TrtspecError("this version of the LLM API does not sample from the target's distribution", hint=hint)

    async def generate(self, asked: EngineRequest, is_cancelled: Callable[[], bool]) -> AsyncIterator[Update]:
        """Yield updates as text becomes available; only the last one has a finish reason."""
        updates: list[Update] = []
        running = RunningRequest(asked, updates.append, self.tokenizer)
        result = self.llm.generate_async(list(asked.prompt_ids), sampling_params(asked), streaming=True)
        seen, reason = 0, None
        async for ids in steps(result, is_cancelled):
            if new := ids[seen:]:
                seen = len(ids)
                reason = running.advance(DecodingStep(0, list(new[:-1]), new[-1]))
            if reason:
                break
            running.update(None)
            while updates:
                yield with_counts(updates.pop(), result, drafts=False)  # counts come with the last response
        if not result.finished:  # a stop text ended the response, which the LLM API does not detect
            result.abort()
        running.update(reason or "end_id")
        yield with_counts(updates.pop(), result, drafts=self.drafts, steps=max(0, (result.decoding_iter or 0) - 1))


def read_arguments(root: Path, version: int, settings: Settings) -> dict[str, Any]:
    """Return the arguments of LLM, with absolute paths; raise TrtspecError if model.yaml contradicts config.pbtxt."""
    path = root / str(version) / "model.yaml"
    document: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    config = document.pop("triton_config")
    expected = {"max_batch_size": settings.max_batch_size, "decoupled": settings.decoupled}
    if config != expected:
        raise TrtspecError(f"triton_config is {config}, but config.pbtxt has {expected}", where=str(path))
    document["model"] = resolve_model_path(root, document["model"])
    speculation = document.get("speculative_config", {})
    for key in PATH_KEYS:
        if key in speculation:
            speculation[key] = resolve_model_path(root, speculation[key])
    return document


def sampling_params(asked: EngineRequest) -> Any:
    """Return the request's SamplingParams; a sampled request sets top_k and top_p, without which it would be greedy."""
    from tensorrt_llm import SamplingParams

    sampling: dict[str, Any] = {}
    if asked.sampling.temperature > 0.0 and asked.sampling.top_k != 1:
        sampling = {key: getattr(asked.sampling, key) for key in ("temperature", "top_p", "seed")}
        sampling["top_k"] = asked.sampling.top_k or None
    end, *further = asked.end_ids or (None,)
    return SamplingParams(
        max_tokens=asked.max_new_tokens,
        end_id=end,
        pad_id=end,
        ignore_eos=end is None,
        stop_token_ids=further or None,
        detokenize=False,
        return_perf_metrics=True,
        **sampling,
    )


async def steps(result: Any, is_cancelled: Callable[[], bool]) -> AsyncIterator[list[int]]:
    """Yield all token ids so far after each step; abort and raise RequestCancelled if the client disconnects."""
    iterator = aiter(result)
    while (output := await unless_cancelled(anext(iterator, None), is_cancelled, result.abort)) is not None:
        yield output.outputs[0].token_ids


def with_counts(update: Update, result: Any, *, drafts: bool, steps: int = 0) -> Update:
    """Return an update with the draft counts and the queue time that the LLM API reports, if available.

    `steps` is the number of decode steps, which is `decoding_iter` without the prefill. Versions before
    NVIDIA/TensorRT-LLM pull 17082 report 0 draft tokens. The accepted tokens are then computed: all tokens except the
    first one and one per step. The number of draft tokens remains unknown.
    """
    output = result.outputs[0]
    metrics = getattr(output, "request_perf_metrics", None)
    counts = getattr(metrics, "speculative_decoding", None)
    drafted, accepted = (counts.total_draft_tokens, counts.total_accepted_draft_tokens) if counts else (0, 0)
    if drafts and steps and not drafted:
        accepted = max(0, len(output.token_ids) - 1 - steps)
    stats = replace(update.stats, drafted=drafted, accepted=accepted, steps=steps, accepted_by_position=())
    times, queue_s = getattr(metrics, "timing_metrics", None), None
    if times and times.first_scheduled_time:  # when the request first joined a batch, None or 0 if it has not
        queue_s = float((times.first_scheduled_time - times.arrival_time).total_seconds())
    return replace(update, stats=stats, queue_s=queue_s)
