# SPDX-License-Identifier: Apache-2.0
"""Text to text, on Edge-LLM's Python API with the arguments of model.json beside this file.

Edge-LLM tokenizes, so that texts go in and out. Its engines lie in the artifact: a cache directory of our own leads its
API there, which would build them anew otherwise. Stop texts are looked for here, as by the other engines.
"""

from __future__ import annotations

import json
import os
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from trtspec.errors import TrtspecError
from trtspec.generation.checks import check_request
from trtspec.generation.request import Limits, Request, SamplingOptions
from trtspec.triton.python_models.responses import Responder
from trtspec.triton.python_models.tensors import (
    Array,
    RequestTensors,
    Settings,
    read_sampling,
    refuse_unsupported,
    wants_stream,
)

ENGINE = "Edge-LLM"
CACHE_GB = 1e6  # nothing is evicted from a cache that is ours alone
LIMITS = Limits(max_seq_len=1 << 31)  # Edge-LLM holds texts against its own


class TritonPythonModel:
    """Triton calls initialize, execute and finalize by name."""

    def initialize(self, args: dict[str, str]) -> None:
        settings = Settings(args)
        self.decoupled = settings.decoupled
        self.end_ids = settings.tokenizer().end_ids
        self.lock = threading.Lock()
        self.pool = ThreadPoolExecutor(int(settings.parameter("concurrency")), "edge_llm")
        self.cache = tempfile.TemporaryDirectory(prefix="edge_llm-")
        root = Path(args["model_repository"])
        self.llm = load(root, int(args["model_version"]), Path(self.cache.name))

    def execute(self, requests: list[Any]) -> list[Any] | None:
        running = [self.pool.submit(self.serve, request) for request in requests]
        return None if self.decoupled else [each.result() for each in running]

    def finalize(self) -> None:
        self.pool.shutdown()
        self.llm.close()
        self.cache.cleanup()

    def serve(self, request: Any) -> Any:
        """Answer one request; returns the response where only one may be sent."""
        responder = Responder(pb_utils, request, self.lock, decoupled=self.decoupled)
        try:
            inputs = RequestTensors(pb_utils, request)
            asked = self.read(inputs)
            streaming = wants_stream(inputs, "stream", decoupled=self.decoupled)
            answer = Answer(asked.stop, "" if inputs.scalar("exclude_input_in_output", True) else asked.text)
            deltas = self.generate(asked)
            for delta in deltas:
                answer.add(delta)
                if responder.is_cancelled():
                    deltas.close()
                    responder.send_cancelled()
                    return responder.response
                if answer.is_complete:
                    break
                if streaming:
                    responder.send_tensors(answer.take, final=False)
            deltas.close()
            responder.send_tensors(answer.take, final=True)
        except Exception as error:
            responder.send_failure(error)
        return responder.response

    def read(self, inputs: RequestTensors) -> Asked:
        """Return what the tensors of a request ask for; raises for what Edge-LLM does not do."""
        refuse_unsupported(inputs, ENGINE)
        if inputs.scalar("return_generation_logits", False):
            raise TrtspecError(f"return_generation_logits is not supported by {ENGINE}")
        if inputs.scalar("end_id") not in (None, *self.end_ids):
            raise TrtspecError(f"end_id is not supported by {ENGINE}: a text ends where the model's own ends do")
        if (drafted := inputs.scalar("num_draft_tokens")) not in (None, 0):
            hint = "0 asks for the target alone"
            raise TrtspecError(
                f"num_draft_tokens {drafted} is not supported by {ENGINE}: its engines decide", hint=hint
            )
        if not (text := "".join(inputs.texts("text_input"))):
            raise TrtspecError("text_input is empty")
        sampling = SamplingOptions(**read_sampling(inputs))
        asked = Request((0,), inputs.scalar("max_tokens"), sampling, stop=tuple(inputs.texts("stop_words")))
        check_request(asked, LIMITS, vocab_size=1, has_tokenizer=True)
        return Asked(text, asked.max_new_tokens, sampling, asked.stop, alone=drafted == 0)

    def generate(self, asked: Asked) -> Any:
        """Return the iterator of what Edge-LLM makes of a request; closing it ends the request."""
        params = sampling_params(asked)
        messages = [{"role": "user", "content": asked.text}]
        # its public calls put the text into a chat template, as its HTTP server's completions do not
        request = self.llm._make_generation_request(
            messages, params, apply_chat_template=False, add_generation_prompt=False
        )
        return self.llm.generate_stream(messages, params, prebuilt_request=request)


@dataclass(frozen=True)
class Asked:
    """A request: its text, how much is to follow and how; `alone` asks for the target without drafts."""

    text: str
    max_tokens: int
    sampling: SamplingOptions
    stop: tuple[str, ...]
    alone: bool

    @property
    def samples(self) -> bool:
        """Return whether tokens are drawn."""
        return self.sampling.temperature > 0.0 and self.sampling.top_k != 1


@dataclass
class Answer:
    """The text of one request, as far as it has come; `unsent` is what its client has not got yet."""

    stop: tuple[str, ...]
    unsent: str
    text: str = ""
    prompt_tokens: int = 0
    new_tokens: int = 0
    is_complete: bool = field(default=False)

    def add(self, delta: Any) -> None:
        """Take what was generated; with a stop text the answer is complete, that text its end."""
        begin = len(self.text)
        self.text += delta.text
        self.new_tokens += len(delta.token_ids)
        self.prompt_tokens = delta.prompt_tokens or self.prompt_tokens
        if delta.finish_reason == "error":
            raise TrtspecError("Edge-LLM gave the request up", hint="the server's log has more")
        ends = [at + len(stop) for stop in self.stop if (at := self.text.find(stop)) >= 0]
        if ends:
            self.text = self.text[: max(begin, min(ends))]
        self.is_complete = bool(ends) or delta.finished
        self.unsent += self.text[begin:]

    def take(self) -> list[tuple[str, Array]]:
        """Return the tensors of one response; the counts are those of the whole text so far."""
        text, self.unsent = self.unsent, ""
        return [
            ("text_output", np.array([text.encode()], object)),
            ("num_input_tokens", np.array([self.prompt_tokens], np.uint32)),
            ("num_output_tokens", np.array([self.new_tokens], np.uint32)),
        ]


def load(root: Path, version: int, cache: Path) -> Any:
    """Start Edge-LLM on an artifact's engines; raises TrtspecError where it would take others."""
    from experimental.server import LLM

    document = json.loads((root / str(version) / "model.json").read_text(encoding="utf-8"))
    engines, arguments = str((root / document["engines"]).resolve()), document["llm"]
    arguments["model"] = str((root / arguments["model"]).resolve())
    speculation = arguments.get("speculative_config", {})
    if "model" in speculation:
        speculation["model"] = str((root / speculation["model"]).resolve())
    options = lead_to_engines(engines, arguments, cache)
    llm = LLM(**arguments, cache_dir=str(cache), engine_cache_max_size_gb=CACHE_GB, build_options=options)
    if os.path.realpath(llm.bundle_dir) != os.path.realpath(engines):
        raise TrtspecError(
            "Edge-LLM does not take the artifact's engines", where=engines, hint="build the recipe again"
        )
    return llm


def lead_to_engines(engines: str, arguments: dict[str, Any], cache: Path) -> Any:
    """Make the cache entry that Edge-LLM looks for lead to `engines`; return its build options."""
    from experimental.server.runtime.engine_build import BuildOptions, bundle_cache_path

    speculation = arguments.get("speculative_config", {})
    sizes = ("max_input_len", "max_batch_size", "max_kv_cache_capacity", "max_verify_tree_size", "max_draft_tree_size")
    options = BuildOptions(
        spec_type=speculation.get("method", "none"),
        draft_model_dir=speculation.get("model", ""),
        **{key: arguments[key] for key in sizes if key in arguments},
    )
    entry = Path(bundle_cache_path(arguments["model"], str(cache), options))
    entry.parent.mkdir(parents=True)
    entry.symlink_to(engines)
    return options


def sampling_params(asked: Asked) -> Any:
    """Return the request in Edge-LLM's words; what samples runs without drafts, which would make it greedy."""
    from experimental.server import SamplingParams

    sampling: dict[str, Any] = {"temperature": 0.0, "top_k": 1, "top_p": 1.0}
    if asked.samples:
        sampling = {key: getattr(asked.sampling, key) for key in ("temperature", "top_k", "top_p", "seed")}
    return SamplingParams(
        max_tokens=asked.max_tokens, disable_spec_decode=asked.alone or asked.samples, reuse_context=False, **sampling
    )
