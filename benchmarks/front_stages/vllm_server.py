# SPDX-License-Identifier: Apache-2.0
"""vLLM's OpenAI server with all of its front end, over the null engine instead of its core.

It runs in vLLM's environment, which lacks trtspec. vLLM's core runs in another process, whose messages cost the front
end time; the null engine's do not.

    python vllm_server.py MODEL PORT < STEPS
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

import uvloop
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, FinishReason
from vllm.v1.engine.core_client import EngineCoreClient

NULL_ENGINE = runpy.run_path(str(Path(__file__).with_name("null_engine.py")))


class NullCore:
    """The part of vLLM's `AsyncMPClient` that its `AsyncLLM` uses."""

    engine_ranks_managed = (0,)

    def __init__(self, steps: Any) -> None:
        self._steps, self._times = steps, steps.times()
        self._ticker: Any = None
        self._open: dict[str, tuple[Any, Any, int]] = {}  # by request id: times, parts, number of parts left
        self.resources = type("Resources", (), {"engine_dead": False})()

    async def add_request_async(self, request: Any) -> None:
        asked = request.sampling_params
        parts = [list(part) for part in self._steps.parts(asked.max_tokens)]
        self._open[request.request_id] = (
            self._times[asked.seed % len(self._times)],
            iter(enumerate(parts)),
            len(parts),
        )

    async def abort_requests_async(self, request_ids: list[str]) -> None:
        for each in request_ids:
            self._open.pop(each, None)

    async def get_output_async(self) -> EngineCoreOutputs:
        """Return the outputs of the next step that has any."""
        self._ticker = self._ticker or NULL_ENGINE["Ticker"](self._steps.step_s)
        while True:
            await self._ticker.step()
            if outputs := [self._output(each) for each in [*self._open]]:
                return EngineCoreOutputs(outputs=outputs)

    def _output(self, request_id: str) -> EngineCoreOutput:
        times, parts, count = self._open[request_id]
        at, ids = next(parts)
        times[at] = NULL_ENGINE["time"].monotonic()
        if at + 1 < count:
            return EngineCoreOutput(request_id, ids)
        del self._open[request_id]
        return EngineCoreOutput(request_id, ids, finish_reason=FinishReason.LENGTH)

    async def get_supported_tasks_async(self) -> tuple[str, ...]:
        return ("generate",)

    async def reset_mm_cache_async(self) -> None:
        """There is no cache."""

    def dp_engines_running(self) -> bool:
        return False

    def shutdown(self, timeout: float | None = None) -> None:
        """Nothing runs."""


def main() -> None:
    from vllm.entrypoints.launchers.api_server.entry import run_server
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    steps = NULL_ENGINE["Steps"].parse(sys.stdin.read())
    EngineCoreClient.make_async_mp_client = staticmethod(lambda *_, **__: NullCore(steps))
    model, port = sys.argv[1:]
    parser = make_arg_parser(FlexibleArgumentParser())
    words = ["--model", model, "--host", "127.0.0.1", "--port", port, "--served-model-name", "null",
             "--disable-uvicorn-access-log", "--disable-log-stats", "--uvicorn-log-level", "warning"]  # fmt: skip
    uvloop.run(run_server(parser.parse_args(words)))


if __name__ == "__main__":
    main()
