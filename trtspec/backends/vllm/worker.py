# SPDX-License-Identifier: Apache-2.0
"""Runs vLLM in a separate process, started by `stand_in` with vLLM's interpreter; does not import trtspec.

    in   {"id", "prompt", "sampling", "stream"}    {"cancel": id}
    out  {"ready": version}    {"id", "error"}    {"running": requests}
         {"id", "text", "tokens", "prompt_tokens", "drafted", "accepted", "by_length", "queue_s", "reason", "done"}

The protocol is JSON lines: commands on stdin, responses on the original stdout. vLLM's own output goes to stderr. The
process exits when stdin is closed.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
from collections.abc import Callable
from typing import IO, Any

Say = Callable[[dict[str, Any]], None]


class VllmWorker:
    """A vLLM engine and the queue of its commands."""

    def __init__(
        self, arguments: dict[str, Any], commands: queue.SimpleQueue[dict[str, Any]], write_reply: Say
    ) -> None:
        from vllm import EngineArgs, LLMEngine

        if "speculative_config" in arguments and hasattr(EngineArgs, "per_request_spec_decode_metrics"):
            arguments = {**arguments, "per_request_spec_decode_metrics": "summary"}
        one_process = arguments.get("tensor_parallel_size", 1) * arguments.get("pipeline_parallel_size", 1) == 1
        self.engine = LLMEngine.from_engine_args(
            EngineArgs(**arguments),
            stat_loggers=[occupancy_logger(write_reply)],
            enable_multiprocessing=not one_process,
        )
        self.commands, self.write_reply = commands, write_reply

    def serve(self) -> None:
        """Process commands and run the engine's steps, forever."""
        while True:
            while not (self.commands.empty() and self.engine.has_unfinished_requests()):
                self.follow(self.commands.get())
            for output in self.engine.step():
                self.answer(output)

    def follow(self, command: dict[str, Any]) -> None:
        """Start or cancel a request; an exception from vLLM is reported as that request's error."""
        if "cancel" in command:
            self.engine.abort_request([command["cancel"]])
            return
        try:
            self.engine.add_request(command["id"], command["prompt"], sampling_params(command))
        except Exception as error:
            self.write_reply({"id": command["id"], "error": str(error)})

    def answer(self, output: Any) -> None:
        """Write a request's output of one step as a reply."""
        [completion] = output.outputs
        drafts = getattr(completion, "spec_decode_metrics", None)  # None if the engine does not report them
        by_length = [*drafts.histogram] if drafts else []
        times = getattr(output, "metrics", None)  # of the request's first batch, if vLLM reports it
        self.write_reply(
            {
                "id": output.request_id,
                "text": completion.text,
                "tokens": len(completion.token_ids),
                "prompt_tokens": len(output.prompt_token_ids),
                "drafted": drafts.num_draft_tokens if drafts else 0,
                "accepted": sum(length * steps for length, steps in enumerate(by_length)),
                "by_length": by_length,
                "queue_s": times.scheduled_ts - times.queued_ts if times and times.scheduled_ts else None,
                "reason": finish_reason(completion),
                "done": output.finished,
            }
        )


def sampling_params(command: dict[str, Any]) -> Any:
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    sampling = dict(command["sampling"])
    if guide := sampling.pop("structured_outputs", None):  # JSON text, as Triton's vLLM backend receives it
        from vllm.sampling_params import StructuredOutputsParams

        sampling["structured_outputs"] = StructuredOutputsParams(**json.loads(guide))
    kind = RequestOutputKind.DELTA if command["stream"] else RequestOutputKind.FINAL_ONLY
    return SamplingParams(**sampling, output_kind=kind)


def occupancy_logger(write_reply: Say) -> Any:
    """Return a vLLM logger class that reports the number of requests in the scheduler's batch."""
    from vllm.v1.metrics.loggers import StatLoggerBase

    class Occupancy(StatLoggerBase):  # type: ignore[misc]
        """Logger that reports the number of running requests when it changes."""

        def __init__(self, config: Any, engine_index: int = 0) -> None:
            self.running = 0

        def record(self, scheduler_stats: Any, *_: Any, **__: Any) -> None:
            if scheduler_stats is not None and scheduler_stats.num_running_reqs != self.running:
                self.running = scheduler_stats.num_running_reqs
                write_reply({"running": self.running})

        def log_engine_initialized(self) -> None:
            pass

    return Occupancy


def finish_reason(completion: Any) -> str | None:
    """Return trtspec's finish reason for a completion, or None while it is running."""
    if completion.finish_reason == "stop":
        return "stop" if isinstance(completion.stop_reason, str) else "end_id"
    return {None: None, "length": "length", "abort": "cancelled"}.get(completion.finish_reason, "error")


def read_commands(commands: queue.SimpleQueue[dict[str, Any]]) -> None:
    for line in sys.stdin:
        commands.put(json.loads(line))
    os._exit(0)  # the parent process has exited


def main() -> None:
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:  # always closed on exit, because the parent waits
        os.dup2(2, 1)
        serve(answers)


def serve(answers: IO[str]) -> None:
    """Load the engine with the model.json in sys.argv[1] and process commands, forever."""

    def write_reply(document: dict[str, Any]) -> None:
        answers.write(json.dumps(document) + "\n")
        answers.flush()

    commands: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    threading.Thread(target=read_commands, args=(commands,), daemon=True).start()
    import vllm

    with open(sys.argv[1], encoding="utf-8") as document:
        worker = VllmWorker(json.load(document), commands, write_reply)
    write_reply({"ready": vllm.__version__})
    worker.serve()


if __name__ == "__main__":
    main()
