# SPDX-License-Identifier: Apache-2.0
"""Access to Edge-LLM's Python API: loading prebuilt engines, and requests and responses as plain values.

By default, that API would build its own engines.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trtspec.core.errors import TrtspecError
from trtspec.engine.generation.request import SamplingOptions, Stats
from trtspec.serving.triton.python_models.tensors import Array

CACHE_GB = 1e6  # large enough that nothing is evicted from this process's private cache


def load(root: Path, version: int, cache: Path) -> Any:
    """Start Edge-LLM with an artifact's engines; raise TrtspecError if it would use other engines.

    `root` is the directory of the served model, and `cache` an empty directory for Edge-LLM's cache.
    """
    from experimental.server import LLM

    document = json.loads((root / str(version) / "model.json").read_text(encoding="utf-8"))
    engines, arguments = str((root / document["engines"]).resolve()), document["llm"]
    arguments["model"] = str((root / arguments["model"]).resolve())
    speculation = arguments.get("speculative_config", {})
    if "model" in speculation:
        speculation["model"] = str((root / speculation["model"]).resolve())
    options = link_engines(engines, arguments, cache)
    llm = LLM(**arguments, cache_dir=str(cache), engine_cache_max_size_gb=CACHE_GB, build_options=options)
    if os.path.realpath(llm.bundle_dir) != os.path.realpath(engines):
        raise TrtspecError("Edge-LLM does not use the artifact's engines", where=engines, hint="build the recipe again")
    return llm


def always_drafts(root: Path, version: int) -> bool:
    """Return whether Edge-LLM cannot run single requests of an artifact without drafts."""
    document = json.loads((root / str(version) / "model.json").read_text(encoding="utf-8"))
    return bool(document.get("always_drafts"))


def link_engines(engines: str, arguments: dict[str, Any], cache: Path) -> Any:
    """Create the entry of Edge-LLM's cache for these arguments as a link to `engines`; return its BuildOptions."""
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


@dataclass(frozen=True)
class EdgeRequest:
    """A request to Edge-LLM: text, maximum number of new tokens, sampling, stop texts; `alone` disables drafts.

    `guide` is the type and the text of a grammar, in Edge-LLM's terms.
    """

    text: str
    max_tokens: int
    sampling: SamplingOptions
    stop: tuple[str, ...]
    alone: bool
    guide: tuple[str, str] | None = None

    @property
    def is_sampled(self) -> bool:
        return self.sampling.temperature > 0.0 and self.sampling.top_k != 1


@dataclass
class EdgeResponse:
    """The generated text of one request so far; `unsent` is the part that was not yet sent to the client."""

    stop: tuple[str, ...]
    unsent: str
    text: str = ""
    prompt_tokens: int = 0
    new_tokens: int = 0
    is_complete: bool = False
    finish_reason: str = "length"

    @property
    def stats(self) -> Stats:
        """Return the token counts so far; Edge-LLM does not report draft counts."""
        return Stats(self.prompt_tokens, self.new_tokens)

    def add(self, delta: Any) -> None:
        """Append generated text; the response is complete after a stop text. Raise TrtspecError if Edge-LLM aborted."""
        begin = len(self.text)
        self.text += delta.text
        self.new_tokens += len(delta.token_ids)
        self.prompt_tokens = delta.prompt_tokens or self.prompt_tokens
        if delta.finish_reason == "error":
            raise TrtspecError("Edge-LLM aborted the request", hint="see the server's log")
        ends = [at + len(stop) for stop in self.stop if (at := self.text.find(stop)) >= 0]
        if ends:
            self.text = self.text[: max(begin, min(ends))]
        self.is_complete = bool(ends) or delta.finished
        if ends or delta.finish_reason == "stop":
            self.finish_reason = "stop" if ends else "end_id"
        self.unsent += self.text[begin:]

    def take(self) -> list[tuple[str, Array]]:
        """Return the output tensors with the unsent text and the token counts of the whole response so far."""
        text, self.unsent = self.unsent, ""
        return [
            ("text_output", np.array([text.encode()], object)),
            ("num_input_tokens", np.array([self.prompt_tokens], np.uint32)),
            ("num_output_tokens", np.array([self.new_tokens], np.uint32)),
        ]


def sampling_params(asked: EdgeRequest) -> Any:
    """Return Edge-LLM's SamplingParams; drafts are disabled for sampled requests, which would otherwise be greedy."""
    from experimental.server import SamplingParams

    sampling: dict[str, Any] = {"temperature": 0.0, "top_k": 1, "top_p": 1.0}
    if asked.is_sampled:
        sampling = {key: getattr(asked.sampling, key) for key in ("temperature", "top_k", "top_p", "seed")}
    sampling["guided_decoding"] = asked.guide
    return SamplingParams(max_tokens=asked.max_tokens, disable_spec_decode=asked.alone or asked.is_sampled, **sampling)


def guide_error(llm: Any, guide_type: str, guide: str) -> str:
    """Return the reason why Edge-LLM does not support a grammar; "" if it does."""
    from experimental.server.runtime.engine import _GUIDE_TYPE_ENUM

    runtime = llm._rt  # the loaded native module, of which one per GPU architecture exists
    params = runtime.GuidedDecodingParams(_GUIDE_TYPE_ENUM[guide_type](runtime), guide)
    is_valid, reason = runtime.validate_guided_decoding_params(params)
    return "" if is_valid else str(reason)
