# SPDX-License-Identifier: Apache-2.0
"""Run by vLLM's interpreter: create AsyncEngineArgs from each document of a JSON object on standard input.

The last line of standard output is a JSON object: by name the method, the number of tokens and the drafter's
architecture, or the error. Only configurations are created, so neither weights nor a GPU are needed.
"""

import json
import sys
import time

from vllm.config import ParallelConfig, SpeculativeConfig
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.model_executor.models import registry

# vLLM inspects each model class in a new interpreter, each of which is as slow to start as this one
registry._run_in_subprocess = lambda look: look()


def configured(arguments: AsyncEngineArgs) -> SpeculativeConfig | None:
    """Return the speculative config; without Triton (on a CPU) vLLM rejects methods that its V1 model runner lacks."""
    try:
        return arguments.create_engine_config().speculative_config
    except ValueError as error:
        if "Model Runner V1 does not support" not in str(error):
            raise
        return arguments.create_speculative_config(arguments.create_model_config(), ParallelConfig())


def accept(document: dict) -> dict:
    """Return vLLM's interpretation of a document."""
    try:
        config = configured(AsyncEngineArgs(**document))
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
    if config is None:
        return {"method": "none"}
    net = config.draft_model_config
    architectures = net.hf_config.architectures if net and "model" in document["speculative_config"] else None
    return {
        "method": config.method,
        "tokens": config.num_speculative_tokens,
        "rule": config.rejection_sample_method,
        "parallel": config.parallel_drafting,
        "architecture": architectures and architectures[0],
    }


if __name__ == "__main__":
    found = {}
    for name, document in json.load(sys.stdin).items():
        found[name] = accept(document)
        sys.stderr.write(f"{time.monotonic():.0f} {name}\n")
    sys.stdout.write(f"{json.dumps(found)}\n")
