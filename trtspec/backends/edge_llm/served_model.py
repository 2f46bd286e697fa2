# SPDX-License-Identifier: Apache-2.0
"""Triton model that generates text with Edge-LLM's Python API; model.json in its directory has the API's arguments.

Edge-LLM tokenizes, so requests and responses contain text. Its API would build new engines; an entry in a private cache
directory makes it use the artifact's engines. Stop texts are matched in this model, like with the other engines.
"""

from __future__ import annotations

import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import triton_python_backend_utils as pb_utils

from trtspec.backends.edge_llm.runtime import (
    EdgeRequest,
    EdgeResponse,
    always_drafts,
    guide_error,
    load,
    sampling_params,
)
from trtspec.core.errors import TrtspecError
from trtspec.engine.generation.request import Constraint, EngineRequest, SamplingOptions, TokenLimits, check_request
from trtspec.serving.triton.python_models import metrics as known
from trtspec.serving.triton.python_models.interruptions import DrainWatcher
from trtspec.serving.triton.python_models.metrics import EngineMetrics, RequestMetrics
from trtspec.serving.triton.python_models.responses import Responder
from trtspec.serving.triton.python_models.tensors import (
    RequestTensors,
    Settings,
    check_draft_tokens,
    check_unsupported,
    read_sampling,
    wants_stream,
)
from trtspec.serving.triton.python_models.token_io import read_constraint

ENGINE = "Edge-LLM"
METRICS = (*known.OF_TEXTS, *known.OF_QUEUE)  # Edge-LLM does not report drafts
LIMITS = TokenLimits(max_seq_len=1 << 31)  # Edge-LLM enforces its own limit
# Edge-LLM's guide types (NVIDIA/TensorRT-Edge-LLM:experimental/server/runtime/engine.py@0.11.0) by trtspec's.
GUIDE_TYPES = {"json": "json_object", "json_schema": "json_schema", "regex": "regex", "ebnf_grammar": "ebnf"}


class TritonPythonModel:
    """The model class; Triton calls initialize, execute and finalize by name."""

    def initialize(self, args: dict[str, str]) -> None:
        settings = Settings(args)
        self.decoupled, self.inputs = settings.decoupled, settings.inputs
        self.end_ids, self.draft_len = settings.tokenizer().end_ids, settings.draft_len
        self.sampling_defaults = settings.sampling_defaults
        self.lock = threading.Lock()
        self.shutdown = DrainWatcher(args["model_repository"])
        self.metrics = EngineMetrics(pb_utils, args, METRICS)
        self.pool = ThreadPoolExecutor(int(settings.parameter("concurrency")), "edge_llm")
        self.cache = tempfile.TemporaryDirectory(prefix="edge_llm-")
        root = Path(args["model_repository"])
        self.always_drafts = always_drafts(root, int(args["model_version"]))
        self.llm = load(root, int(args["model_version"]), Path(self.cache.name))

    def execute(self, requests: list[Any]) -> list[Any] | None:
        running = [self.pool.submit(self.serve, request, self.metrics.text()) for request in requests]
        return None if self.decoupled else [each.result() for each in running]

    def finalize(self) -> None:
        self.pool.shutdown()
        self.llm.close()
        self.cache.cleanup()
        self.metrics.close()
        self.shutdown.close()

    def serve(self, request: Any, text: RequestMetrics) -> Any:
        """Serve one request; return its response unless the model is decoupled."""
        responder = Responder(pb_utils, request, self.lock, decoupled=self.decoupled, shutdown=self.shutdown)
        try:
            inputs = RequestTensors(pb_utils, request)
            with inputs.naming():
                asked = self.read(inputs)
                streaming = wants_stream(inputs, "stream", decoupled=self.decoupled)
            text.started()
            answer = EdgeResponse(asked.stop, "" if inputs.scalar("exclude_input_in_output", True) else asked.text)
            deltas = self.generate(asked)
            for delta in deltas:
                answer.add(delta)
                text.progressed(answer.stats)
                if responder.is_cancelled():
                    deltas.close()
                    text.ended("cancelled")
                    responder.send_cancelled()
                    return responder.response
                if answer.is_complete:
                    break
                if streaming:
                    responder.send_tensors(answer.take, final=False)
            deltas.close()
            text.ended(answer.finish_reason, answer.stats)
            responder.send_tensors(answer.take, final=True)
        except Exception as error:
            text.failed(error)
            responder.send_failure(error)
        return responder.response

    def read(self, inputs: RequestTensors) -> EdgeRequest:
        """Return the request in the input tensors; raise TrtspecError for unsupported features."""
        inputs.reject_undeclared(self.inputs, ENGINE)
        check_unsupported(inputs, ENGINE)
        if inputs.scalar("end_id") not in (None, *self.end_ids):
            raise TrtspecError(f"end_id is not supported by {ENGINE}: texts end with the model's own end ids")
        if (drafted := inputs.scalar("num_draft_tokens")) != 0:  # 0 disables drafts
            check_draft_tokens(inputs, self.draft_len, ENGINE)
        if not (text := "".join(inputs.texts("text_input"))):
            raise TrtspecError("text_input is empty")
        sampling = SamplingOptions(**read_sampling(inputs, defaults=self.sampling_defaults))
        stop, constraint = tuple(inputs.texts("stop_words")), read_constraint(inputs)
        asked = EngineRequest((0,), inputs.scalar("max_tokens"), sampling, stop=stop, constraint=constraint)
        check_request(asked, LIMITS, vocab_size=1, has_tokenizer=True)
        guide = self.guide(constraint) if constraint else None
        found = EdgeRequest(text, asked.max_new_tokens, sampling, stop, alone=drafted == 0, guide=guide)
        if self.always_drafts and (found.alone or found.is_sampled):
            what = "num_draft_tokens 0" if found.alone else "sampling"
            message = f"{what} is not supported by {ENGINE} with this drafter, which it cannot disable for a request"
            raise TrtspecError(message, hint="use temperature 0 or top_k 1, without num_draft_tokens")
        return found

    def guide(self, constraint: Constraint) -> tuple[str, str]:
        """Return a grammar in Edge-LLM's terms; raise TrtspecError with Edge-LLM's reason if it is not supported."""
        guide = GUIDE_TYPES[constraint.guide_type], constraint.guide if constraint.guide_type != "json" else ""
        if reason := guide_error(self.llm, *guide):
            raise TrtspecError(f"the {constraint.guide_type} guide is not supported: {reason}")
        return guide

    def generate(self, asked: EdgeRequest) -> Any:
        """Return an iterator over the generated text; closing it ends the request."""
        params = sampling_params(asked)
        messages = [{"role": "user", "content": asked.text}]
        # LLM's public methods apply a chat template, unlike completions of Edge-LLM's HTTP server
        plain = {"apply_chat_template": False, "add_generation_prompt": False}
        request = self.llm._make_generation_request(messages, params, **plain)
        return self.llm.generate_stream(messages, params, prebuilt_request=request)
