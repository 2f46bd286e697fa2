# SPDX-License-Identifier: Apache-2.0
"""Our stand-in for Triton's backend `vllm`, which comes in no wheel: used where a tritonserver has none.

Takes the tensors and the model.json of that backend (triton-inference-server/vllm_backend:src/model.py@00ea75bc), so
that an artifact is served alike by both. vLLM itself runs in a process of its own (`worker`), where it is
installed. Beyond the other it says how many tokens were drafted and accepted, where vLLM counts them by request.
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

from trtspec.backends.vllm.environment import WORKER, find_vllm
from trtspec.engine.generation.request import Stats
from trtspec.serving.triton.python_models import metric_families as known
from trtspec.serving.triton.python_models.metrics import Metrics
from trtspec.serving.triton.python_models.request_metrics import Text

METRICS = (*known.OF_TEXTS, *known.OF_QUEUE, *known.OF_DRAFTS, *known.OF_STEPS, *known.OF_POSITIONS)
FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
CANCEL_POLL_S = 0.05
TELL_S = 2.0
EXIT_S = 10.0
ENDED = "vLLM ended: the server's log has what it said"
# one engine of one GPU runs in the worker itself: vLLM is then imported once instead of three times
ENVIRONMENT = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_NO_USAGE_STATS": "1"}
NOT_VLLMS = ("LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONHOME")  # they lead to this interpreter's libraries


@dataclass
class Asked:
    """A request that runs: where answers go, the prompt to put before them, and whether tokens are counted.

    `tokens` of its text have come, which is followed by `text`.
    """

    sender: Any
    before: str
    counted: bool
    text: Text
    tokens: int = 0

    def count(self, said: dict[str, Any]) -> None:
        """Tell the metrics what an answer says; its `by_length` are steps by how many tokens they accepted."""
        self.tokens += said["tokens"]
        if said["queue_s"] is not None:
            self.text.started(said["queue_s"])
        by_length = said["by_length"]
        by_position = tuple(sum(by_length[place:]) for place in range(1, len(by_length)))
        drafts = (said["drafted"], said["accepted"], sum(by_length), by_position)
        stats = Stats(said["prompt_tokens"], self.tokens, *drafts)
        if said["done"]:
            self.text.ended(said["reason"] or "error", stats)
        else:
            self.text.progressed(stats)


class TritonPythonModel:
    """Triton calls these by name."""

    def initialize(self, args: dict[str, str]) -> None:
        version = Path(args["model_repository"]) / args["model_version"]
        self.counts = {output["name"] for output in json.loads(args["model_config"])["output"]}
        self.asked: dict[str, Asked] = {}
        self.number = 0
        self.running = 0  # of the requests, as vLLM's scheduler says; the others wait for it
        self.metrics = Metrics(pb_utils, args, METRICS, self.occupancy)
        self.ended = self.unloading = False
        self.lock = threading.Lock()  # over commands, which two threads give, and over who still gets an answer
        self.lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self.worker = _start_worker(version / "model.json")
        threading.Thread(target=self.read, daemon=True).start()
        if (first := self.lines.get()) is None or "ready" not in json.loads(first):
            raise RuntimeError("vLLM did not start: what it said is above")
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
        with suppress(BrokenPipeError):  # it may have ended before
            self.commands.close()
        try:
            self.worker.wait(EXIT_S)
        except subprocess.TimeoutExpired:
            self.worker.kill()
        self.metrics.close()

    @property
    def commands(self) -> IO[str]:
        return cast("IO[str]", self.worker.stdin)

    def occupancy(self) -> tuple[int, int]:
        """Return how many requests run and how many wait; vLLM says nothing where those that run are cancelled."""
        running = min(self.running, known_here := len(self.asked))
        return running, known_here - running

    def submit(self, request: Any, sender: Any, text: Text) -> None:
        """Hand a request to vLLM."""
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
            self.asked[name] = Asked(sender, prompt if before_text else "", counted, text)
        text.handed_over()
        self.tell({"id": name, "prompt": prompt, "sampling": sampling, "stream": stream})

    def tell(self, command: dict[str, Any]) -> None:
        with self.lock, suppress(BrokenPipeError):  # it ended, of which `dispatch` tells everyone
            self.commands.write(json.dumps(command) + "\n")
            self.commands.flush()

    def read(self) -> None:
        for line in cast("IO[str]", self.worker.stdout):
            self.lines.put(line)
        self.lines.put(None)

    def dispatch(self) -> None:
        """Hand answers to whom they are for and ask now and then who has gone, until vLLM ends."""
        looked = time.monotonic()
        while (line := self.next_line()) is not None:
            if line:
                self.answer(json.loads(line))
            if time.monotonic() - looked >= CANCEL_POLL_S:
                self.drop_cancelled()
                looked = time.monotonic()
        self.end()

    def next_line(self) -> str | None:
        """Return the next answer, "" where there is none for a while, None where vLLM has ended."""
        try:
            return self.lines.get(timeout=CANCEL_POLL_S)
        except queue.Empty:  # its children may outlive it with their end of the pipe
            return "" if self.worker.poll() is None else None

    def end(self) -> None:
        """Tell everyone who waits, then end this process, unless it was Triton that ended vLLM."""
        with self.lock:
            self.ended = True
        while self.asked:
            _, asked = self.asked.popitem()
            asked.text.ended("error")
            _fail(asked.sender, ENDED)
        if not self.unloading:
            self.worker.kill()  # where all that ended is its voice
            telling = threading.Thread(target=pb_utils.Logger.log_error, args=(ENDED,), daemon=True)
            telling.start()
            telling.join(TELL_S)  # the log is the server's, whose answer is waited for
            os._exit(1)

    def answer(self, said: dict[str, Any]) -> None:
        """Take what vLLM says and send it on; of a request that was cancelled there may be one answer more."""
        if "running" in said:
            self.running = said["running"]
            return
        if (asked := self.asked.get(said["id"])) is None:
            return
        if "error" in said or said["done"]:
            del self.asked[said["id"]]
        if "error" in said:
            asked.text.ended("refused")
            _fail(asked.sender, said["error"])
            return
        asked.count(said)
        tensors = [pb_utils.Tensor(name, array) for name, array in _outputs(asked, said).items() if name in self.counts]
        asked.sender.send(pb_utils.InferenceResponse(tensors), flags=FINAL if said["done"] else 0)

    def drop_cancelled(self) -> None:
        for name in [name for name, asked in [*self.asked.items()] if asked.sender.is_cancelled()]:
            self.tell({"cancel": name})
            asked = self.asked.pop(name)
            asked.text.ended("cancelled")
            asked.sender.send(flags=FINAL)


def _start_worker(model_json: Path) -> subprocess.Popen[str]:
    kept = {name: value for name, value in os.environ.items() if name not in NOT_VLLMS}
    return subprocess.Popen(
        [str(find_vllm()), str(WORKER), str(model_json)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**ENVIRONMENT, **kept},
    )


def _first(request: Any, name: str, default: Any) -> Any:
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    return default if tensor is None else tensor.as_numpy().reshape(-1)[0]


def _outputs(asked: Asked, said: dict[str, Any]) -> dict[str, np.ndarray[Any, Any]]:
    found = {"text_output": np.array([(asked.before + said["text"]).encode()], object)}
    if asked.counted:
        found["num_input_tokens"] = np.array([said["prompt_tokens"]], np.uint32)
        found["num_output_tokens"] = np.array([said["tokens"]], np.uint32)
    drafted, accepted = said["drafted"], said["accepted"]
    found["acceptance_rate"] = np.array([accepted / max(drafted, 1)], np.float32)
    found["total_accepted_draft_tokens"] = np.array([accepted], np.int32)
    found["total_draft_tokens"] = np.array([drafted], np.int32)
    return found


def _fail(sender: Any, message: str) -> None:
    error = pb_utils.TritonError(f"Error generating stream: {message}")
    sender.send(pb_utils.InferenceResponse(error=error), flags=FINAL)
