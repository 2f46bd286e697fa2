# SPDX-License-Identifier: Apache-2.0
"""Validate lists of Engine arguments with SGLang's own ServerArgs, in the environment of `make sglang`.

Reads JSON lines from standard input, each a list of documents, and writes a JSON line for each to the given file
descriptor: for each document `problem` (null if it is valid) and `resolved`, SGLang's resolved speculation arguments. A
list is processed in a fork, so that lists are independent. Each document passes SGLang's command-line parser
(which knows the choices), its resolution and its checks, as on a machine with CUDA and an NVIDIA H100.

Kernels are missing: the modules of STAND_INS are empty, and their attributes do nothing. What SGLang decides by the GPU
that it finds, it decides as on an H100: the platform's facts, and the quantizations of CUDA.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import json
import os
import sys
import types
from collections.abc import Sequence
from typing import Any

# the kernel modules that SGLang imports while it resolves arguments
STAND_INS = ("cuda", "flashinfer", "sgl_kernel", "torchvision", "triton", "tvm_ffi")
SPECULATION = (
    "speculative_algorithm",
    "speculative_num_steps",
    "speculative_eagle_topk",
    "speculative_num_draft_tokens",
)
SPECULATION += ("speculative_adaptive", "speculative_use_rejection_sampling", "max_running_requests")
DEVICE = "cuda"


class StandIn:
    """A dummy object: it can be called, indexed and inherited from, and returns decorated objects unchanged."""

    def __call__(self, *given: Any, **named: Any) -> Any:
        return given[0] if len(given) == 1 and callable(given[0]) and not named else StandIn()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return StandIn()

    def __getitem__(self, key: Any) -> StandIn:
        return StandIn()

    def __or__(self, other: Any) -> StandIn:
        return StandIn()

    __ror__ = __or__

    def __mro_entries__(self, bases: tuple[type, ...]) -> tuple[type, ...]:
        return (object,)


class StandInModule(types.ModuleType):
    __path__: Sequence[str] = ()
    __version__ = "3.0.0"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return StandIn()


class StandInFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        known = name.split(".", maxsplit=1)[0] in STAND_INS
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if known else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return StandInModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def stand_in() -> None:
    """Install the dummies for SGLang only: torch and transformers have already looked for the modules."""
    os.environ["TORCHDYNAMO_DISABLE"] = "1"
    import torch.utils._triton
    import torch.utils.flop_counter
    from transformers.utils import import_utils

    torch.utils._triton.has_triton_package()
    import_utils.is_torchvision_available()
    sys.meta_path.insert(0, StandInFinder())


def pretend_cuda() -> None:
    """Make the facts about the machine those of one with an NVIDIA H100, after SGLang was imported."""
    from sglang.srt.layers import quantization
    from sglang.srt.runtime_context import override_platform

    override_platform(is_cuda=True, is_sm90=True).install()
    # registered if is_cuda() at import, sglang/srt/layers/quantization/__init__.py
    for known in (quantization.BASE_QUANTIZATION_METHODS, quantization.QUANTIZATION_METHODS):
        known["mxfp4"] = quantization.Mxfp4Config


def ask(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the result for one document."""
    from sglang.srt.arg_groups.overrides import resolution_result
    from sglang.srt.server_args import ServerArgs, prepare_server_args

    try:
        ServerArgs(**arguments)  # requires full names, like Engine; the parser below accepts abbreviations
        asked = prepare_server_args(command_line({"device": DEVICE, **arguments}))
        asked.resolve_once()
        asked.check_server_args()
    except (Exception, SystemExit) as error:
        return {"problem": f"{type(error).__name__}: {error}", "resolved": {}}
    return {"problem": None, "resolved": {name: resolution_result(asked, name) for name in SPECULATION}}


def command_line(arguments: dict[str, Any]) -> list[str]:
    """Return Engine arguments as options of `sglang serve`."""
    words = []
    for name, value in arguments.items():
        option = f"--{name.replace('_', '-')}"
        if isinstance(value, list):
            words += [option, *map(str, value)]
        elif value is not False:
            words += [option] if value is True else [option, str(value)]
    return words


if __name__ == "__main__":
    answers = open(int(sys.argv[1]), "w")  # noqa: SIM115
    stand_in()
    import sglang.srt.arg_groups.overrides
    import sglang.srt.server_args  # noqa: F401

    pretend_cuda()
    for line in sys.stdin:
        if not (child := os.fork()):
            print(json.dumps([ask(each) for each in json.loads(line)]), file=answers, flush=True)
            os._exit(0)
        os.waitpid(child, 0)
