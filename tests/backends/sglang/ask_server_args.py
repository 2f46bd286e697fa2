# SPDX-License-Identifier: Apache-2.0
"""Asks SGLang's own ServerArgs, in the environment of `make sglang`, about lists of Engine's arguments.

Reads lines of JSON from standard input, each a list of documents, and answers each with a line of JSON on the file
descriptor that it is given: of each document `problem` (null where it is taken) and `resolved`, what SGLang made of the
speculation. A list is answered in a fork: nothing that an earlier one left decides. Each document goes through SGLang's
parser of its command line (which knows the choices), its resolution and its checks, as on a CUDA machine of NVIDIA's
H100.

Kernels are not here: modules of STAND_INS are empty, and what is taken from them does nothing. Nothing computes.
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

# what SGLang imports of kernels while it resolves arguments
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
    """Anything: it can be called, indexed, inherited from, and leaves what it decorates as it is."""

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
    """Put the stand-ins in place, for SGLang alone: torch and transformers have looked for their own before."""
    os.environ["TORCHDYNAMO_DISABLE"] = "1"
    import torch.utils._triton
    import torch.utils.flop_counter
    from transformers.utils import import_utils

    torch.utils._triton.has_triton_package()
    import_utils.is_torchvision_available()
    sys.meta_path.insert(0, StandInFinder())


def ask(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the answer on one document."""
    from sglang.srt.arg_groups.overrides import resolution_result
    from sglang.srt.server_args import ServerArgs, prepare_server_args

    try:
        ServerArgs(**arguments)  # its names whole, as Engine takes them; the parser below completes shortened ones
        asked = prepare_server_args(command_line({"device": DEVICE, **arguments}))
        asked.resolve_once()
        asked.check_server_args()
    except (Exception, SystemExit) as error:
        return {"problem": f"{type(error).__name__}: {error}", "resolved": {}}
    return {"problem": None, "resolved": {name: resolution_result(asked, name) for name in SPECULATION}}


def command_line(arguments: dict[str, Any]) -> list[str]:
    """Return arguments of Engine as `sglang serve` takes them."""
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

    for line in sys.stdin:
        if not (child := os.fork()):
            print(json.dumps([ask(each) for each in json.loads(line)]), file=answers, flush=True)
            os._exit(0)
        os.waitpid(child, 0)
