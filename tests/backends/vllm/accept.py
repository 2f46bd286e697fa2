# SPDX-License-Identifier: Apache-2.0
"""Run by vLLM's interpreter: create AsyncEngineArgs from each document of a JSON object on standard input.

The last line of standard output is a JSON object: by name the method, the number of tokens and the drafter's
architecture, or the error. Only configurations are created, so neither weights nor a GPU are needed. torchvision, which
has no build for this PyTorch on a CPU and which multimodal classes import, is an empty module.
"""

import importlib.machinery
import json
import sys
import time
import types

from vllm.config import ParallelConfig, SpeculativeConfig
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.model_executor.models import registry

# vLLM inspects each model class in a new interpreter, each of which is as slow to start as this one
registry._run_in_subprocess = lambda look: look()


class StandIn(types.ModuleType):
    """An empty module: its attributes are modules like it, which return themselves when called."""

    __version__ = "0.28.0"

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return StandIn(name)

    def __call__(self, *given: object, **named: object) -> object:
        return self


class TorchvisionFinder:
    """Finds torchvision and every module below it."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> object:
        is_one = name.split(".", maxsplit=1)[0] == "torchvision"
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if is_one else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return StandIn(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


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
    sys.meta_path.insert(0, TorchvisionFinder())
    found = {}
    for name, document in json.load(sys.stdin).items():
        found[name] = accept(document)
        sys.stderr.write(f"{time.monotonic():.0f} {name}\n")
    sys.stdout.write(f"{json.dumps(found)}\n")
