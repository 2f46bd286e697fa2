# SPDX-License-Identifier: Apache-2.0
"""Engine with checked arguments; responses come from answers.json in the model's directory.

The table maps a prompt's ids, joined by spaces, to its response: {"steps": [[ids], ...], "drafted": n, "accepted": n,
"pause_s": seconds before each step, "queue_s": seconds before the first}. requests.jsonl there records the parameters
and the end of each request.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SPECULATION = (
    "algorithm", "draft_model_path", "draft_model_revision", "draft_model_quantization", "num_steps", "eagle_topk",
    "num_draft_tokens", "use_block_verification", "adaptive", "adaptive_config", "dspark_block_size",
    "ngram_min_bfs_breadth", "ngram_max_bfs_breadth", "ngram_max_trie_depth",
)  # fmt: skip
ARGUMENTS = {
    *("model_path", "skip_tokenizer_init", "dtype", "quantization", "kv_cache_dtype", "context_length", "revision"),
    *("enable_metrics", "tp_size", "pp_size", "max_running_requests", "chunked_prefill_size", "mem_fraction_static"),
    *(f"speculative_{name}" for name in SPECULATION),
}
SAMPLING = {"max_new_tokens", "temperature", "top_p", "top_k", "sampling_seed", "ignore_eos", "stop_token_ids"}
GRAMMARS = {"json_schema", "regex", "ebnf"}
MODEL_END = 0


class Engine:
    def __init__(self, **kwargs: Any) -> None:
        if unknown := kwargs.keys() - ARGUMENTS:
            raise TypeError(f"Unexpected keyword argument '{min(unknown)}'")
        if threading.current_thread() is not threading.main_thread():
            raise ValueError("signal only works in main thread of the main interpreter")
        self.arguments, self.root = kwargs, Path(kwargs["model_path"])
        for key in ("model_path", "speculative_draft_model_path"):
            if key in kwargs and not Path(kwargs[key]).is_dir():
                raise OSError(f"{kwargs[key]} is not a local folder and is not a valid model identifier")
        if path := kwargs.get("speculative_adaptive_config"):
            _check_adaptive(json.loads(Path(path).read_text()), kwargs["speculative_num_steps"])
        self.table = json.loads((self.root / "answers.json").read_text())
        self.tokenizer_manager = TokenizerManager(self)

    async def async_generate(
        self,
        prompt: str | None = None,
        sampling_params: dict[str, Any] | None = None,
        input_ids: list[int] | None = None,
        *,
        stream: bool = False,
        rid: str | None = None,
    ) -> AsyncIterator[dict[str, Any]]:
        if not stream or prompt is not None or input_ids is None or rid is None:
            raise ValueError("this stand-in streams ids of requests that have a name")
        asked = _checked(sampling_params or {})
        if len(input_ids) >= self.arguments["context_length"]:
            raise ValueError(f"The input ({len(input_ids)} tokens) is longer than the model's context length")
        self.note({"event": "asked", "prompt": input_ids, **asked})
        return self._parts(input_ids, asked, rid)

    async def _parts(self, prompt: list[int], asked: dict[str, Any], rid: str) -> AsyncIterator[dict[str, Any]]:
        answer = self.table.get(" ".join(map(str, prompt)))
        if answer is None:
            raise ValueError("no answer is known for this prompt")
        request = self.tokenizer_manager.rid_to_state[rid] = RequestState()
        if error := self._grammar_error(asked):
            del self.tokenizer_manager.rid_to_state[rid]
            reason = {"type": "abort", "message": error, "status_code": 400, "err_type": "BadRequestError"}
            yield {"output_ids": [], "meta_info": {"id": rid, "finish_reason": reason, "completion_tokens": 0}}
            return
        ends = set() if asked.get("ignore_eos") else {MODEL_END, *asked.get("stop_token_ids", ())}
        ids: list[int] = []
        for step in answer["steps"]:
            await asyncio.sleep(answer["pause_s"])
            for token in step:
                ids.append(token)
                if token in ends:
                    request.finish_reason = {"type": "stop", "matched": token}
                elif len(ids) == asked["max_new_tokens"]:
                    request.finish_reason = {"type": "length", "length": len(ids)}
                if request.finish_reason:
                    break
            if request.abort_sent and not request.finish_reason:
                request.finish_reason = {"type": "abort", "message": "Unknown error", "status_code": None}
            if step is answer["steps"][-1] and not request.finish_reason:
                request.finish_reason = {"type": "length", "length": len(ids)}
            yield {"output_ids": ids, "meta_info": self._about(answer, ids, request, rid)}
            if request.finish_reason:
                del self.tokenizer_manager.rid_to_state[rid]
                return

    def _grammar_error(self, asked: dict[str, Any]) -> str:
        """Return the message with which SGLang ends a request whose grammar it cannot use, "" for others."""
        guides = asked.keys() & GRAMMARS
        if guides and self.arguments.get("skip_tokenizer_init"):
            return "Grammar-based generation is not supported when the server is launched with --grammar-backend none"
        if "json_schema" in guides:
            try:
                json.loads(asked["json_schema"])
            except ValueError as error:
                return f"Failed to compile json grammar: {error}"
        return ""

    def _about(self, answer: dict[str, Any], ids: list[int], request: RequestState, rid: str) -> dict[str, Any]:
        about = {"id": rid, "finish_reason": request.finish_reason, "completion_tokens": len(ids)}
        if self.arguments.get("enable_metrics"):
            about["queue_time"] = answer["queue_s"]
        if request.finish_reason and self.arguments.get("speculative_algorithm"):
            drafted, accepted = answer["drafted"], answer["accepted"]
            about |= {"spec_num_proposed_drafts": drafted, "spec_num_correct_drafts": accepted}
            about["spec_verify_ct"] = steps = drafted // (self.arguments["speculative_num_draft_tokens"] - 1)
            # steps that accepted 0, 1, ... draft tokens: as many as possible accept all
            depth = self.arguments["speculative_num_steps"]
            whole, rest = divmod(accepted, depth)
            about["spec_correct_drafts_histogram"] = histogram = [0] * (depth + 1)
            histogram[depth] = whole
            histogram[rest] += rest > 0
            histogram[0] += steps - sum(histogram)
        return about

    def note(self, event: dict[str, Any]) -> None:
        with (self.root / "requests.jsonl").open("a") as log:
            log.write(json.dumps(event) + "\n")

    def shutdown(self) -> None:
        self.note({"event": "shutdown"})


@dataclass
class RequestState:
    abort_sent: bool = False
    finish_reason: dict[str, Any] | None = None


class TokenizerManager:
    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.rid_to_state: dict[str, RequestState] = {}

    def abort_request(self, rid: str = "", abort_all: bool = False) -> None:
        state = self.rid_to_state.get(rid)
        if state is not None and not state.abort_sent:
            state.abort_sent = True
            self.engine.note({"event": "aborted"})


def _checked(asked: dict[str, Any]) -> dict[str, Any]:
    """Return the checked parameters; raises the errors of SamplingParams."""
    if unknown := asked.keys() - SAMPLING - GRAMMARS:
        raise TypeError(f"Unexpected keyword argument '{min(unknown)}'")
    if len(asked.keys() & GRAMMARS) > 1:
        raise ValueError("Only one of json_schema, regex, ebnf, or structural_tag can be set.")
    if asked["temperature"] < 0:
        raise ValueError(f"temperature must be non-negative, got {asked['temperature']}.")
    if not 0 < asked.get("top_p", 1.0) <= 1:
        raise ValueError(f"top_p must be in (0, 1], got {asked['top_p']}.")
    if (top_k := asked.get("top_k", -1)) < 1 and top_k != -1:
        raise ValueError(f"top_k must be -1 (disable) or at least 1, got {top_k}.")
    if not -(2**63) <= asked.get("sampling_seed", 0) < 2**63:
        raise ValueError(f"sampling_seed must be in [-2**63, 2**63 - 1], got {asked['sampling_seed']}.")
    return asked


def _check_adaptive(document: dict[str, Any], steps: int) -> None:
    known = {step for key, entry in document.items() if key.isdigit() for step in entry["candidate_steps"]}
    if steps not in known:
        raise ValueError(f"--speculative-num-steps={steps} is not in the adaptive config candidate_steps")
