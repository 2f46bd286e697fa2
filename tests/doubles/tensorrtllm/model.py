# SPDX-License-Identifier: Apache-2.0
"""A double of Triton's backend `tensorrtllm`: reads a model's configuration like it, and replays a script.

It rejects what the real backend rejects (NVIDIA/TensorRT-LLM:triton_backend/inflight_batcher_llm/src/
{model_state.cc@5cdd6921,model_instance_state.cc@c8c6df08,utils.cc@19290813}, for a bias cpp/tensorrt_llm/batch_manager/
createNewDecoderRequests.cpp@b35ac1b6), and more: values that the real one treats as unset with a warning are errors
here, because our output must be deliberate. Instead of an engine there is script.json, a list of token ids: the token
at position n of any text is the n-th of the list, which repeats from its start; config.json next to it has the number
of logits. For each token it counts two drafted tokens and one accepted; a lookahead model has drafted as many as its
window. Proves nothing about TensorRT-LLM.
"""

from __future__ import annotations

import json
import re
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

NEEDED = ("tokenizer_dir", "guided_decoding_backend", "xgrammar_tokenizer_info_path", "gpt_model_type")
LOOKAHEAD = ("lookahead_window_size", "lookahead_ngram_size", "lookahead_verification_set_size")
FLAGS = (
    *("enable_kv_cache_reuse", "enable_chunked_context", "exclude_input_in_output", "normalize_log_probs"),
    "speculative_decoding_fast_logits",
)
INTEGERS = (
    *("max_beam_width", "max_tokens_in_paged_kv_cache", "kv_cache_host_memory_bytes"),
    *("cancellation_check_period_ms", "stats_check_period_ms"),
)
WORDS = {
    "gpt_model_type": {"inflight_fused_batching"},
    "batch_scheduler_policy": {"guaranteed_no_evict", "max_utilization"},
    "decoding_mode": {"medusa", "redrafter", "lookahead", "eagle"},
    "FORCE_CPU_ONLY_INPUT_TENSORS": {"yes", "no"},
}
PATTERNS = {
    "gpu_device_ids": r"\d+(,\d+)*",
    "participant_ids": r"\d+(,\d+)*",
    "medusa_choices": r"\{\d+(,\d+)*\}(,\{\d+(,\d+)*\})*",
    "eagle_choices": r"\{\d+(,\d+)*\}(,\{\d+(,\d+)*\})*",
    "kv_cache_free_gpu_mem_fraction": r"0\.\d+|1\.0",
    "executor_worker_path": r"/opt/tritonserver/backends/tensorrtllm/trtllmExecutorWorker",
    "gpt_model_path": r".+",
    **dict.fromkeys((*INTEGERS, *LOOKAHEAD), r"\d+"),
    **dict.fromkeys(FLAGS, "true|false"),
    **{key: "|".join(words) for key, words in WORDS.items()},
    **dict.fromkeys(NEEDED[:3], ""),
}


class TritonPythonModel:
    """Triton calls initialize, execute and finalize by name."""

    def initialize(self, args: dict[str, str]) -> None:
        config = json.loads(args["model_config"])
        parameters = {key: value["string_value"] for key, value in config["parameters"].items()}
        check(parameters)
        self.decoupled = config["model_transaction_policy"]["decoupled"]
        self.name = args["model_name"]
        self.excludes = parameters["exclude_input_in_output"] == "true"
        self.window = parameters.get(LOOKAHEAD[0])
        engine = Path(parameters["gpt_model_path"])
        self.script = json.loads((engine / "script.json").read_text())
        self.vocab_size = json.loads((engine / "config.json").read_text())["pretrained_config"]["vocab_size"]

    def execute(self, requests: list[Any]) -> list[Any] | None:
        sys.stdout.write(f"{self.name}: {len(requests)} together\n")  # tests read this in the server's log
        sys.stdout.flush()
        answers = [self.responses(Inputs(request)) for request in requests]
        if not self.decoupled:
            return [next(responses) for responses in answers]
        for request, responses in zip(requests, answers, strict=True):
            sender, held = request.get_response_sender(), None
            for response in responses:
                if held:
                    sender.send(held)
                held = response
            sender.send(held, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        return None

    def responses(self, inputs: Inputs) -> Any:
        """Yield one response per token for a stream, else a single response."""
        prompt, streaming = inputs.ids("input_ids"), inputs.scalar("streaming", False)
        if streaming and not self.decoupled:
            raise pb_utils.TritonModelException(
                "Streaming is only supported if model is deployed using decoupled mode."
            )
        self.check_sizes(inputs)
        self.check_bias(inputs.array("embedding_bias"))
        tokens = self.generate(prompt, inputs)
        shown = [] if streaming or inputs.scalar("exclude_input_in_output", self.excludes) else prompt
        pieces = [[token] for token in tokens] or [[]] if streaming else [shown + tokens]
        for number, piece in enumerate(pieces, start=1):
            generated = number if streaming else len(tokens)
            yield pb_utils.InferenceResponse(self.tensors(inputs, piece, len(prompt), generated))

    def check_sizes(self, inputs: Inputs) -> None:
        """Raise for incomplete lookahead sizes, or for a model without lookahead."""
        given = [name for name in LOOKAHEAD if inputs.array(name) is not None]
        if given and given != [*LOOKAHEAD]:
            raise pb_utils.TritonModelException(f"Failed to extract one of {LOOKAHEAD}")
        if given and self.window is None:
            raise pb_utils.TritonModelException("Cannot set the request lookahead decoding configuration")

    def check_bias(self, bias: np.ndarray | None) -> None:
        """Raise for a bias whose length is not the engine's vocabulary size; an empty one is ignored."""
        if bias is not None and bias.size not in (0, self.vocab_size):
            raise pb_utils.TritonModelException(
                "The embedding bias shape is not as expected. "
                f"Expected last dimension to be same as vocab size: {self.vocab_size}."
            )

    def generate(self, prompt: list[int], inputs: Inputs) -> list[int]:
        """Return the script from the end of the prompt, up to an end id or through a stop word.

        Drafts do not change it: like the real backend, it ends after the first token that differs from the draft.
        """
        length, end_id = inputs.scalar("request_output_len"), inputs.scalar("end_id", -1)
        stop_words, draft = inputs.words("stop_words_list"), inputs.ids("draft_input_ids")
        tokens: list[int] = []
        while len(tokens) < (len(draft) + 1 if draft else length):
            token = self.script[(len(prompt) + len(tokens)) % len(self.script)]
            if token == end_id:
                break
            tokens.append(token)
            if any(tokens[-len(word) :] == word for word in stop_words):
                break
            if draft and tokens != draft[: len(tokens)]:
                break
        return tokens

    def tensors(self, inputs: Inputs, ids: list[int], prompt_len: int, generated: int) -> list[Any]:
        """Return the requested outputs in the shapes of one beam.

        Every response counts the drafted tokens since the request began, for the tokens `generated` so far.
        """
        outputs = {"output_ids": np.array([[ids]], np.int32), "sequence_length": np.array([[len(ids)]], np.int32)}
        if inputs.scalar("return_num_input_tokens", False):
            outputs["num_input_tokens"] = np.array([[prompt_len]], np.int32)
        if inputs.scalar("return_perf_metrics", False):
            window = inputs.array(LOOKAHEAD[0])
            each = 2 if self.window is None else int(self.window) if window is None else window.item()
            outputs["acceptance_rate"] = np.array([[1 / each]], np.float32)
            outputs["total_accepted_draft_tokens"] = np.array([[generated]], np.int32)
            outputs["total_draft_tokens"] = np.array([[generated * each]], np.int32)
        return [pb_utils.Tensor(name, array) for name, array in outputs.items()]


class Inputs:
    """The tensors of one request, in the shapes that result from `reshape`."""

    def __init__(self, request: Any) -> None:
        self.request = request

    def array(self, name: str) -> np.ndarray | None:
        tensor = pb_utils.get_input_tensor_by_name(self.request, name)
        return None if tensor is None else tensor.as_numpy()

    def scalar(self, name: str, default: Any = None) -> Any:
        array = self.array(name)
        if array is None:
            return default
        assert array.shape == (1,), (name, array.shape)
        return array.item()

    def ids(self, name: str) -> list[int]:
        array = self.array(name)
        return [] if array is None else array[0].tolist()

    def words(self, name: str) -> list[list[int]]:
        array = self.array(name)
        if array is None:
            return []
        ids, ends = array[0].tolist()
        bounds = [0, *(end for end in ends if end > 0)]
        return [ids[start:end] for start, end in pairwise(bounds)]


def check(parameters: dict[str, str]) -> None:
    """Raise for values that the real backend rejects or treats as unset."""
    for key in NEEDED:
        if key not in parameters:
            raise pb_utils.TritonModelException(f"Cannot find parameter with name: {key}")
    for key, value in parameters.items():
        if key not in PATTERNS or not re.fullmatch(PATTERNS[key], value):
            raise pb_utils.TritonModelException(f"parameter {key} is {value!r}")
    if not Path(parameters["gpt_model_path"]).exists():
        raise pb_utils.TritonModelException("Both encoder and decoder model paths are empty")
    if parameters.get("decoding_mode") == "lookahead" and not parameters.keys() >= {*LOOKAHEAD}:
        raise pb_utils.TritonModelException(
            "Decoding mode is set to lookahead but lookahead parameters are not specified."
        )
