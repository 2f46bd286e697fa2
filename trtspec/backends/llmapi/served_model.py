# SPDX-License-Identifier: Apache-2.0
"""Triton model that generates token ids with TensorRT-LLM's LLM API; model.yaml in its directory has the arguments.

The LLM API matches stop words by token ids, but the same text can consist of other tokens. Stop words are therefore
matched in this model.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from trtspec.core.errors import TrtspecError
from trtspec.engine.generation.request import Constraint, EngineRequest, Update, add_accepted
from trtspec.engine.generation.request_state import DecodingStep, RunningRequest
from trtspec.serving.triton.python_models import metrics as known
from trtspec.serving.triton.python_models.async_engine_model import (
    AsyncEngineModel,
    resolve_model_path,
    unless_cancelled,
)
from trtspec.serving.triton.python_models.tensors import Settings

STATS = "TRTSPEC_LLMAPI_STATS"  # "1" makes LLM report its queue, which makes its iterations slightly slower
STATS_S = 0.1  # maximum wait for statistics
PATH_KEYS = ("speculative_model", "speculative_model_dir", "confidence_cost_table_path", "confidence_calibration_path")
# Fields of GuidedDecodingParams (NVIDIA/TensorRT-LLM:tensorrt_llm/sampling_params.py@000a01de) by guide type.
GUIDE_FIELDS = {"json_schema": "json", "regex": "regex", "ebnf_grammar": "grammar"}
GUIDE_ERROR = "Guided decoding error"  # in the error of a request whose guide fails (NVIDIA/TensorRT-LLM pull 9078)


class TritonPythonModel(AsyncEngineModel):
    """The model class that Triton loads."""

    NAME = "the LLM API"
    METRICS = (*known.OF_TEXTS, *known.OF_QUEUE, *known.OF_DRAFTS, *known.OF_STEPS)
    GPU_VARIABLES = ("CUDA_VISIBLE_DEVICES", "TRTLLM_VISIBLE_DEVICES")

    def start_engine(self, root: Path, version: int, settings: Settings) -> None:
        from tensorrt_llm import LLM
        from tensorrt_llm.llmapi.llm_utils import update_llm_args_with_extra_dict

        self.greedy_only = settings.parameter("greedy_only") == "true"
        # versions up to 1.2 need TensorRT-LLM's own function to construct the sections
        arguments = read_arguments(root, version, settings)
        self.drafts = "speculative_config" in arguments
        self.reports_queue, self.queued = os.environ.get(STATS) == "1", 0
        if self.reports_queue:
            arguments["enable_iter_perf_stats"] = True
        self.llm = LLM(**update_llm_args_with_extra_dict({}, arguments))
        # newer versions remove it for models without support (tensorrt_llm/llmapi/model_support_matrix.py)
        self.guides = getattr(self.llm.args, "guided_decoding_backend", None) is not None

    def end_engine(self) -> None:
        self.llm.shutdown()

    def engine_queue(self) -> int | None:
        """Return `numQueuedRequests` of the latest iteration, or None if statistics are off.

        Without a new iteration, the earlier number is still valid.
        """
        if not self.reports_queue:
            return None
        for iteration in self.llm.get_stats(timeout=STATS_S):
            self.queued = int(iteration["numQueuedRequests"])
        return self.queued

    def check(self, asked: EngineRequest) -> None:
        if self.greedy_only and not asked.sampling.greedy:
            hint = "set temperature to 0, or serve with TensorRT-LLM 1.3 or later"
            raise TrtspecError("this version of the LLM API does not sample from the target's distribution", hint=hint)
        if asked.constraint and not self.guides:
            raise TrtspecError("structured output is not supported by the LLM API for this model")

    async def generate(self, asked: EngineRequest, is_cancelled: Callable[[], bool]) -> AsyncIterator[Update]:
        """Yield updates as text becomes available; only the last one has a finish reason."""
        updates: list[Update] = []
        running = RunningRequest(asked, updates.append, self.tokenizer)
        result = self.llm.generate_async(list(asked.prompt_ids), sampling_params(asked), streaming=True)
        seen, sizes, reason = 0, list[int](), None
        async for ids in steps(result, is_cancelled, has_guide=asked.constraint is not None):
            if new := ids[seen:]:
                seen = len(ids)
                sizes.append(len(new))
                reason = running.advance(DecodingStep(0, list(new[:-1]), new[-1]))
            if reason:
                break
            running.update(None)
            while updates:
                yield with_counts(updates.pop(), result)  # counts come with the last response
        if not result.finished:  # a stop text ended the response, which the LLM API does not detect
            result.abort()
        running.update(reason or "end_id")
        yield with_counts(updates.pop(), result, sizes, drafts=self.drafts)


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
        **({"guided_decoding": guided_decoding(asked.constraint)} if asked.constraint else {}),
        **sampling,
    )


def guided_decoding(constraint: Constraint) -> Any:
    """Return the LLM API's GuidedDecodingParams of a grammar."""
    from tensorrt_llm.llmapi import GuidedDecodingParams

    if constraint.guide_type == "json":
        return GuidedDecodingParams(json_object=True)
    return GuidedDecodingParams(**{GUIDE_FIELDS[constraint.guide_type]: constraint.guide})


async def steps(result: Any, is_cancelled: Callable[[], bool], *, has_guide: bool) -> AsyncIterator[list[int]]:
    """Yield all token ids so far after each step; abort and raise RequestCancelled if the client disconnects.

    Raises TrtspecError if the request has a guide that the LLM API cannot compile.
    """
    iterator = aiter(result)
    try:
        while (output := await unless_cancelled(anext(iterator, None), is_cancelled, result.abort)) is not None:
            yield output.outputs[0].token_ids
    except RuntimeError as error:  # RequestError of tensorrt_llm
        if has_guide and GUIDE_ERROR in str(error):
            reason = str(error).partition(GUIDE_ERROR)[2].strip(": ").partition("\n")[0]
            raise TrtspecError(f"the guide is not supported: {reason[:300]}") from None
        raise


def with_counts(update: Update, result: Any, sizes: Sequence[int] = (), *, drafts: bool = False) -> Update:
    """Return an update with the draft counts and the queue time that the LLM API reports, if available.

    `sizes` are the numbers of new tokens of the responses that had some, empty before the last one. `decoding_iter` is
    the number of iterations, of which the first is the prefill. Versions before NVIDIA/TensorRT-LLM pull 17082 report 0
    draft tokens. The accepted tokens are then computed: all tokens except the first one and one per step. The number of
    draft tokens remains unknown. The LLM API reports no positions; if each response has the tokens of one iteration,
    they follow from its size.
    """
    output = result.outputs[0]
    metrics = getattr(output, "request_perf_metrics", None)
    counts = getattr(metrics, "speculative_decoding", None)
    drafted, accepted = (counts.total_draft_tokens, counts.total_accepted_draft_tokens) if counts else (0, 0)
    steps = max(0, (result.decoding_iter or 0) - 1) if sizes else 0
    if drafts and steps and not drafted:
        accepted = max(0, len(output.token_ids) - 1 - steps)
    by_position: list[int] = []
    for size in sizes[1:] if drafts and len(sizes) == steps + 1 else ():
        add_accepted(by_position, size - 1)
    draft_steps = steps if drafts else 0
    stats = replace(update.stats, drafted=drafted, accepted=accepted, steps=steps, draft_steps=draft_steps)
    stats = replace(stats, accepted_by_position=tuple(by_position))
    times, queue_s = getattr(metrics, "timing_metrics", None), None
    if times and times.first_scheduled_time:  # when the request first joined a batch, None or 0 if it has not
        queue_s = float((times.first_scheduled_time - times.arrival_time).total_seconds())
    return replace(update, stats=stats, queue_s=queue_s)
