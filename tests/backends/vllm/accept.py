# SPDX-License-Identifier: Apache-2.0
"""Run by vLLM's own interpreter: what AsyncEngineArgs makes of each document of a JSON object on standard input.

The last line of standard output is a JSON object: by name the method, the number of tokens and the net's architecture,
or the error. A configuration is all that is made: no weight is read, no GPU is needed.
"""

import json
import sys
import time

from vllm.config import ParallelConfig, SpeculativeConfig
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.model_executor.models import registry

# vLLM looks at each class of a model in an interpreter of its own, of which each takes as long as this one
registry._run_in_subprocess = lambda look: look()


def configured(arguments: AsyncEngineArgs) -> SpeculativeConfig | None:
    """Return what drafts; without Triton, as on a CPU, vLLM stops there for what its V1 model runner lacks."""
    try:
        return arguments.create_engine_config().speculative_config
    except ValueError as error:
        if "Model Runner V1 does not support" not in str(error):
            raise
        return arguments.create_speculative_config(arguments.create_model_config(), ParallelConfig())


def accept(document: dict) -> dict:
    """Return what vLLM understood."""
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
