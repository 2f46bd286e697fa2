# SPDX-License-Identifier: Apache-2.0
"""A substitute for Triton's backend `vllm`, which is not published as a wheel, for tritonservers without it.

It has the same tensors and the same model.json as that backend
(triton-inference-server/vllm_backend:src/model.py@00ea75bc), so that both can serve the same artifact. vLLM runs in a
separate process (`worker`) with its own interpreter. Unlike Triton's backend, the substitute also reports draft counts
if vLLM counts them per request.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import triton_python_backend_utils as pb_utils

from trtspec.backends.vllm import WORKER, find_vllm
from trtspec.engine.generation.request import Stats
from trtspec.serving.triton.python_models import metrics as known
from trtspec.serving.triton.python_models.metrics import EngineMetrics, RequestMetrics
from trtspec.serving.triton.python_models.token_io import UNKNOWN_STEPS

METRICS = (*known.OF_TEXTS, *known.OF_QUEUE, *known.OF_DRAFTS, *known.OF_STEPS, *known.OF_POSITIONS)
FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
CANCEL_POLL_S = 0.05
TELL_S = 2.0
EXIT_S = 10.0
ENDED = "vLLM ended: see the server's log"
# an engine on one GPU runs in the worker process, so that vLLM is imported once instead of three times
ENVIRONMENT = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_NO_USAGE_STATS": "1"}
EXCLUDED_VARIABLES = ("LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONHOME")  # they refer to this interpreter's libraries


@dataclass
class OpenRequest:
    """A running request: its response sender, the prompt to prepend to the text, and whether token counts are returned.

    `tokens` is the number of tokens received so far, and `text` the metrics of the request.
    """

    sender: Any
    before: str
    counted: bool
    text: RequestMetrics
    tokens: int = 0

    def count(self, output: dict[str, Any]) -> None:
        """Add an output to the request's metrics; `by_length[n]` is the number of steps that accepted n tokens."""
        self.tokens += output["tokens"]
        if output["queue_s"] is not None:
            self.text.started(output["queue_s"])
        by_length = output["by_length"]
        drafts = (output["drafted"], output["accepted"], sum(by_length), _by_position(by_length))
        stats = Stats(output["prompt_tokens"], self.tokens, *drafts)
        if output["done"]:
            self.text.ended(output["reason"] or "error", stats)
        else:
            self.text.progressed(stats)


class TritonPythonModel:
    """The model class; Triton calls initialize, execute and finalize by name."""

    def initialize(self, args: dict[str, str]) -> None:
        version = Path(args["model_repository"]) / args["model_version"]
        self.counts = {output["name"] for output in json.loads(args["model_config"])["output"]}
        self.asked: dict[str, OpenRequest] = {}
        self.number = 0
        self.running = 0  # requests in the batch of vLLM's scheduler; the others wait
        self.metrics = EngineMetrics(pb_utils, args, METRICS, self.occupancy)
        self.ended = self.unloading = False
        self.lock = threading.Lock()  # guards commands, which two threads send, and the open requests
        self.lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self.worker = _start_worker(version / "model.json")
        self.commands = cast("IO[str]", self.worker.stdin)
        threading.Thread(target=self.read, daemon=True).start()
        if (first := self.lines.get()) is None or "ready" not in json.loads(first):
            raise RuntimeError("vLLM did not start: see its output above")
        threading.Thread(target=self.dispatch, daemon=True).start()

    def execute(self, requests: list[Any]) -> None:
        for request in requests:
            sender, text = request.get_response_sender(), self.metrics.text()
            try:
                self.submit(request, sender, text)
            except Exception as error:
                text.ended("refused")
                _fail(sender, str(error))

    def finalize(self) -> None:
        self.unloading = True
        with suppress(BrokenPipeError):  # the worker may have exited already
            self.commands.close()
        try:
            self.worker.wait(EXIT_S)
        except subprocess.TimeoutExpired:
            self.worker.kill()
        self.metrics.close()

    def occupancy(self) -> tuple[int, int]:
        """Return the numbers of running and of waiting requests.

        vLLM's number of running requests may include cancelled ones, so it is limited to the number of open requests.
        """
        running = min(self.running, open_requests := len(self.asked))
        return running, open_requests - running

    def submit(self, request: Any, sender: Any, text: RequestMetrics) -> None:
        stream, exclude = bool(_first(request, "stream", False)), _first(request, "exclude_input_in_output", None)
        before_text = not exclude if exclude is not None else not stream
        if before_text and stream:
            raise ValueError("exclude_input_in_output: false is not served in a stream")
        prompt = _first(request, "text_input", b"").decode()
        sampling = json.loads(_first(request, "sampling_parameters", b"{}"))
        self.number += 1
        name = str(self.number)
        counted = bool(_first(request, "return_num_output_tokens", False))
        with self.lock:
            if self.ended:
                raise RuntimeError(ENDED)
            self.asked[name] = OpenRequest(sender, prompt if before_text else "", counted, text)
        text.handed_over()
        self.send_command({"id": name, "prompt": prompt, "sampling": sampling, "stream": stream})

    def send_command(self, command: dict[str, Any]) -> None:
        with self.lock, suppress(BrokenPipeError):  # the worker exited; `dispatch` notifies the clients
            self.commands.write(json.dumps(command) + "\n")
            self.commands.flush()

    def read(self) -> None:
        for line in cast("IO[str]", self.worker.stdout):
            self.lines.put(line)
        self.lines.put(None)

    def dispatch(self) -> None:
        """Send outputs to their clients and poll for cancelled requests, until the worker exits."""
        last_poll = time.monotonic()
        while (line := self.next_line()) is not None:
            if line:
                self.answer(json.loads(line))
            if time.monotonic() - last_poll >= CANCEL_POLL_S:
                self.drop_cancelled()
                last_poll = time.monotonic()
        self.end()

    def next_line(self) -> str | None:
        """Return the worker's next output line, "" after CANCEL_POLL_S without one, or None if the worker exited."""
        try:
            return self.lines.get(timeout=CANCEL_POLL_S)
        except queue.Empty:  # children of the worker may keep its end of the pipe open
            return "" if self.worker.poll() is None else None

    def end(self) -> None:
        """Fail all open requests, then exit this process unless Triton is unloading the model."""
        with self.lock:
            self.ended = True
        while self.asked:
            _, asked = self.asked.popitem()
            asked.text.ended("error")
            _fail(asked.sender, ENDED)
        if not self.unloading:
            self.worker.kill()  # it may only have closed its output
            logging = threading.Thread(target=pb_utils.Logger.log_error, args=(ENDED,), daemon=True)
            logging.start()
            logging.join(TELL_S)  # logging waits for a reply of the server
            os._exit(1)

    def answer(self, output: dict[str, Any]) -> None:
        """Send an output of vLLM to its client; outputs of cancelled requests are ignored."""
        if "running" in output:
            self.running = output["running"]
            return
        if (asked := self.asked.get(output["id"])) is None:
            return
        if "error" in output or output["done"]:
            del self.asked[output["id"]]
        if "error" in output:
            asked.text.ended("refused")
            _fail(asked.sender, output["error"])
            return
        asked.count(output)
        arrays = _outputs(asked, output)
        tensors = [pb_utils.Tensor(name, array) for name, array in arrays.items() if name in self.counts]
        asked.sender.send(pb_utils.InferenceResponse(tensors), flags=FINAL if output["done"] else 0)

    def drop_cancelled(self) -> None:
        for name in [name for name, asked in [*self.asked.items()] if asked.sender.is_cancelled()]:
            self.send_command({"cancel": name})
            asked = self.asked.pop(name)
            asked.text.ended("cancelled")
            asked.sender.send(flags=FINAL)


def _start_worker(model_json: Path) -> subprocess.Popen[str]:
    passed = {name: value for name, value in os.environ.items() if name not in EXCLUDED_VARIABLES}
    return subprocess.Popen(
        [str(find_vllm()), str(WORKER), str(model_json)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**ENVIRONMENT, **passed},
    )


def _first(request: Any, name: str, default: Any) -> Any:
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    return default if tensor is None else tensor.as_numpy().reshape(-1)[0]


def _outputs(asked: OpenRequest, output: dict[str, Any]) -> dict[str, np.ndarray[Any, Any]]:
    found = {"text_output": np.array([(asked.before + output["text"]).encode()], object)}
    if asked.counted:
        found["num_input_tokens"] = np.array([output["prompt_tokens"]], np.uint32)
        found["num_output_tokens"] = np.array([output["tokens"]], np.uint32)
    drafted, accepted, by_length = output["drafted"], output["accepted"], output["by_length"]
    found["acceptance_rate"] = np.array([accepted / max(drafted, 1)], np.float32)
    found["total_accepted_draft_tokens"] = np.array([accepted], np.int32)
    found["total_draft_tokens"] = np.array([drafted], np.int32)
    # an ensemble needs every output of each response, also if vLLM does not report drafts, or only with the last one
    found["num_draft_steps"] = np.array([sum(by_length) if by_length else UNKNOWN_STEPS], np.int32)
    found["accepted_by_position"] = np.array(_by_position(by_length) or (0,), np.int32)
    return found


def _by_position(by_length: list[int]) -> tuple[int, ...]:
    """Return the accepted tokens by position of the draft; `by_length[n]` counts the steps that accepted n tokens."""
    return tuple(sum(by_length[position:]) for position in range(1, len(by_length)))


def _fail(sender: Any, message: str) -> None:
    error = pb_utils.TritonError(f"Error generating stream: {message}")
    sender.send(pb_utils.InferenceResponse(error=error), flags=FINAL)
