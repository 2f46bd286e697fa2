# SPDX-License-Identifier: Apache-2.0
"""vLLM in a process of its own, started by `stand_in` with vLLM's interpreter: imports nothing of trtspec.

    in   {"id", "prompt", "sampling", "stream"}    {"cancel": id}
    out  {"ready": version}    {"id", "error"}
         {"id", "text", "tokens", "prompt_tokens", "drafted", "accepted", "done"}

Lines of JSON: commands on stdin, answers on what was stdout (vLLM's own words go to stderr). Ends with its stdin.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
from collections.abc import Callable
from typing import Any

Say = Callable[[dict[str, Any]], None]


class Worker:
    """One engine, and the commands that wait for it."""

    def __init__(self, arguments: dict[str, Any], commands: queue.SimpleQueue[dict[str, Any]], say: Say) -> None:
        from vllm import EngineArgs, LLMEngine

        if "speculative_config" in arguments and hasattr(EngineArgs, "per_request_spec_decode_metrics"):
            arguments = {**arguments, "per_request_spec_decode_metrics": "summary"}
        one_process = arguments.get("tensor_parallel_size", 1) * arguments.get("pipeline_parallel_size", 1) == 1
        self.engine = LLMEngine.from_engine_args(EngineArgs(**arguments), enable_multiprocessing=not one_process)
        self.commands, self.say = commands, say

    def serve(self) -> None:
        """Follow commands and generate, for ever."""
        while True:
            while not (self.commands.empty() and self.engine.has_unfinished_requests()):
                self.follow(self.commands.get())
            for output in self.engine.step():
                self.answer(output)

    def follow(self, command: dict[str, Any]) -> None:
        """Begin or cancel a request; what vLLM does not take is that request's error."""
        if "cancel" in command:
            self.engine.abort_request([command["cancel"]])
            return
        try:
            self.engine.add_request(command["id"], command["prompt"], sampling_params(command))
        except Exception as error:
            self.say({"id": command["id"], "error": str(error)})

    def answer(self, output: Any) -> None:
        """Say what a step gave a request."""
        [said] = output.outputs
        drafted, accepted = counts(getattr(said, "spec_decode_metrics", None))
        self.say(
            {
                "id": output.request_id,
                "text": said.text,
                "tokens": len(said.token_ids),
                "prompt_tokens": len(output.prompt_token_ids),
                "drafted": drafted,
                "accepted": accepted,
                "done": output.finished,
            }
        )


def sampling_params(command: dict[str, Any]) -> Any:
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    kind = RequestOutputKind.DELTA if command["stream"] else RequestOutputKind.FINAL_ONLY
    return SamplingParams(**command["sampling"], output_kind=kind)


def counts(metrics: Any) -> tuple[int, int]:
    """Return how many tokens were drafted and accepted; of an engine that does not say so, zeros."""
    if metrics is None:
        return 0, 0
    return metrics.num_draft_tokens, sum(length * steps for length, steps in enumerate(metrics.histogram))


def read_commands(commands: queue.SimpleQueue[dict[str, Any]]) -> None:
    for line in sys.stdin:
        commands.put(json.loads(line))
    os._exit(0)  # whoever started this has ended


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def say(document: dict[str, Any]) -> None:
        answers.write(json.dumps(document) + "\n")
        answers.flush()

    commands: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    threading.Thread(target=read_commands, args=(commands,), daemon=True).start()
    import vllm

    with open(sys.argv[1], encoding="utf-8") as document:
        worker = Worker(json.load(document), commands, say)
    say({"ready": vllm.__version__})
    worker.serve()


if __name__ == "__main__":
    main()
