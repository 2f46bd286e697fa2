# SPDX-License-Identifier: Apache-2.0
"""A double of Triton's backend `vllm`: reads tensors and model.json like it; responses come from a table.

It rejects what the real one rejects, and more (triton-inference-server/vllm_backend:src/{model.py,utils/
request.py,utils/vllm_backend_utils.py}@00ea75bc; vllm-project/vllm:vllm/{engine/arg_utils.py,config/speculative.py,
v1/spec_decode/draft_model.py,v1/worker/gpu/sample/states.py} of the version named in VLLM_VERSION, by default 0.27.1).
The table is answers.json next to the model: the tokens' texts by prompt. Proves nothing about vLLM.
"""

from __future__ import annotations

import json
import os
import queue
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

ARGUMENTS = {
    *("model", "tokenizer", "revision", "dtype", "quantization", "kv_cache_dtype", "max_model_len", "max_num_seqs"),
    *("max_num_batched_tokens", "gpu_memory_utilization", "tensor_parallel_size", "pipeline_parallel_size"),
    *("speculative_config", "enable_prefix_caching"),
}
SPECULATION = {
    *("method", "num_speculative_tokens", "model", "revision", "quantization", "draft_tensor_parallel_size"),
    *("prompt_lookup_min", "prompt_lookup_max", "parallel_drafting", "suffix_decoding_max_tree_depth"),
    *("suffix_decoding_max_cached_requests", "suffix_decoding_max_spec_factor", "suffix_decoding_min_token_prob"),
}
# fields, methods, rules and behaviours by the first version with them
SINCE = {
    "num_speculative_tokens_per_batch_size": (0, 24),
    "use_heterogeneous_vocab": (0, 25),
    "rejection_sample_method": (0, 21),
    "draft_sample_method": (0, 22),
    "block": (0, 25),
    "dflash": (0, 20),
    "dspark": (0, 25),
    "positions": (0, 27),
}
WITH_DRAFT = ("draft_model", "eagle", "eagle3", "dflash", "dspark", "medusa")
SAMPLING = {
    "max_tokens": int,
    "temperature": float,
    "top_k": int,
    "top_p": float,
    "seed": int,
    "stop": list,
    "ignore_eos": bool,
    "stop_token_ids": list,
    "structured_outputs": str,  # JSON, which the backend parses
}
GUIDES = {"json", "regex", "choice", "grammar", "json_object", "structural_tag"}


class TritonPythonModel:
    """Triton calls initialize, execute and finalize by name."""

    def initialize(self, args: dict[str, str]) -> None:
        config = json.loads(args["model_config"])
        if not config["model_transaction_policy"]["decoupled"] or config["max_batch_size"]:
            raise ValueError("the backend serves decoupled models without batching")
        if args["model_instance_kind"] != "MODEL":
            raise ValueError(f"KIND_{args['model_instance_kind']} is for models on one GPU")
        version = Path(args["model_repository"]) / args["model_version"]
        document = json.loads((version / "model.json").read_text())
        check_arguments(document)
        self.answers = json.loads((Path(document["model"]) / "answers.json").read_text())
        self.requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.thread = threading.Thread(target=self.work, daemon=True)
        self.thread.start()

    def execute(self, requests: list[Any]) -> None:
        for request in requests:
            self.requests.put(request)

    def finalize(self) -> None:
        self.requests.put(None)
        self.thread.join(30)

    def work(self) -> None:
        while (request := self.requests.get()) is not None:
            sender = request.get_response_sender()
            try:
                self.generate(request, sender)
            except Exception as error:
                failed = pb_utils.TritonError(f"Error generating stream: {error}")
                sender.send(
                    pb_utils.InferenceResponse(error=failed), flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
                )

    def generate(self, request: Any, sender: Any) -> None:
        prompt, stream, prepend, asked, counts = read(request)
        tokens = self.answers[prompt][: asked["max_tokens"]]
        text, steps = "", []
        for number, token in enumerate(tokens):
            text += token
            ends = [text.index(stop) for stop in asked["stop"] if stop in text]
            steps.append((text if not ends else text[: min(ends)], number + 1))
            if ends:
                break
        if not stream:
            said, count = steps[-1]
            sender.send(
                answer((prompt if prepend else "") + said, prompt, count, counts),
                flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL,
            )
            return
        shown = 0
        for said, count in steps:
            if sender.is_cancelled():
                break
            time.sleep(0.002)
            last = count == len(steps)
            flags = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if last else 0
            sender.send(answer(said[shown:], prompt, 1, counts), flags=flags)
            shown = max(shown, len(said))


def check_arguments(document: dict[str, Any], version: tuple[int, ...] | None = None) -> None:
    """Raise for values that AsyncEngineArgs, SpeculativeConfig or the model runner of a version would reject."""
    version = version or tuple(map(int, os.environ.get("VLLM_VERSION", "0.27.1").split(".")))
    if unknown := document.keys() - ARGUMENTS:
        raise TypeError(f"AsyncEngineArgs got unexpected keywords {sorted(unknown)}")
    if not Path(document["model"]).is_absolute():
        raise ValueError(f"{document['model']} is read from the server's working directory")
    if speculation := document.get("speculative_config"):
        check_speculation(speculation, version)
        check_division(document, speculation, version)
        check_positions(document, speculation, version)


def check_speculation(speculation: dict[str, Any], version: tuple[int, ...]) -> None:
    known = SPECULATION | {field for field, since in SINCE.items() if version >= since}
    if unknown := speculation.keys() - known:
        raise TypeError(f"SpeculativeConfig got unexpected keywords {sorted(unknown)}")
    method, rule = speculation["method"], speculation.get("rejection_sample_method")
    if version < SINCE.get(method, ()) or (method == "medusa" and version >= (0, 33)):
        raise ValueError(f"Unsupported speculative method: '{method}'")
    if rule == "block" and version < SINCE["block"]:
        raise ValueError(f"rejection_sample_method has no {rule}")
    if speculation["num_speculative_tokens"] < 1:
        raise ValueError("num_speculative_tokens must be greater than zero")
    if method in WITH_DRAFT and not Path(speculation["model"]).is_dir():
        raise FileNotFoundError(speculation["model"])
    if speculation.get("prompt_lookup_min", 1) > speculation.get("prompt_lookup_max", 1):
        raise ValueError("prompt_lookup_min must be <= prompt_lookup_max")


def check_division(document: dict[str, Any], speculation: dict[str, Any], version: tuple[int, ...]) -> None:
    tensor_size = document["tensor_parallel_size"]
    if (
        speculation["method"] == "draft_model"
        and speculation.get("draft_tensor_parallel_size", tensor_size) != tensor_size
    ):
        raise ValueError("Currently, 'draft_tensor_parallel_size' and 'tensor_parallel_size' must be the same.")
    if document["pipeline_parallel_size"] > 1 and (speculation["method"] != "eagle3" or version < (0, 30)):
        raise ValueError(f"{speculation['method']} with pipeline parallel is not supported.")


def check_positions(document: dict[str, Any], speculation: dict[str, Any], version: tuple[int, ...]) -> None:
    net = Path(speculation.get("model", "")) / "config.json"
    if speculation["method"] not in ("eagle", "eagle3") or not net.is_file():
        return
    positions = json.loads(net.read_text()).get("max_position_embeddings", document["max_model_len"])
    if positions < document["max_model_len"] and version < SINCE["positions"]:
        raise RuntimeError("device-side assert triggered")


def tensor(request: Any, name: str) -> np.ndarray | None:
    found = pb_utils.get_input_tensor_by_name(request, name)
    if found is None:
        return None
    array = found.as_numpy()
    if array.shape != (1,):
        raise ValueError(f"{name} has the shape {array.shape}: the backend takes its first element")
    return array


def read(request: Any) -> tuple[str, bool, bool, dict[str, Any], bool]:
    """Return prompt, stream, whether to include the prompt, sampling options, and whether to count tokens."""
    stream_tensor, exclude = tensor(request, "stream"), tensor(request, "exclude_input_in_output")
    stream = bool(stream_tensor[0]) if stream_tensor is not None else False
    prepend = not exclude[0] if exclude is not None else not stream
    if prepend and stream:
        raise ValueError("When streaming, `exclude_input_in_output` = False is not allowed.")
    asked = json.loads(tensor(request, "sampling_parameters")[0])
    for key, value in asked.items():
        if not isinstance(value, SAMPLING[key]):
            raise TypeError(f"{key} is {value!r}")
    check_guide(json.loads(asked.get("structured_outputs", "null")))
    if asked["seed"] >= 2**63:
        raise OverflowError("Python int too large to convert to C long")
    wants = [tensor(request, f"return_num_{what}_tokens") for what in ("input", "output")]
    return tensor(request, "text_input")[0].decode(), stream, prepend, asked, all(want is not None for want in wants)


def check_guide(guide: dict[str, Any] | None) -> None:
    """Raise the errors of StructuredOutputsParams and of vLLM's validation."""
    if guide is None:
        return
    if unknown := guide.keys() - GUIDES:
        raise TypeError(f"StructuredOutputsParams got unexpected keywords {sorted(unknown)}")
    if len(guide) != 1:
        raise ValueError("You can only use one kind of structured outputs constraint")
    try:
        json.loads(guide.get("json", "{}"))
    except ValueError:
        raise ValueError("Invalid JSON grammar specification.") from None


def answer(text: str, prompt: str, count: int, counts: bool) -> Any:
    tensors = [pb_utils.Tensor("text_output", np.asarray([text.encode()], object))]
    if counts:  # the first one is a scalar without dimensions, as in the backend
        tensors.append(pb_utils.Tensor("num_input_tokens", np.asarray(len(prompt), np.uint32)))
        tensors.append(pb_utils.Tensor("num_output_tokens", np.asarray([count], np.uint32)))
    return pb_utils.InferenceResponse(output_tensors=tensors)
