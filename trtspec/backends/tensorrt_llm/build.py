# SPDX-License-Identifier: Apache-2.0
"""Steps that build a TensorRT engine from a converted checkpoint, and write a script to rebuild it.

The messages of trtllm-build are from NVIDIA/TensorRT-LLM:tensorrt_llm/builder.py@008b2b8d, tensorrt_llm/_common.py and
__init__.py.
"""

from __future__ import annotations

import re
import shlex
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from trtspec.backends.common.build_tools import (
    Tool,
    check_same_tools,
    linked_workdir,
    log_path,
    rebuild_script,
    run_tool,
    visible_gpus,
)
from trtspec.backends.common.convert import ConvertCheckpoint
from trtspec.backends.common.trtllm_versions import find_version_spec, is_release
from trtspec.backends.tensorrt_llm.engine_dir import ExpectedEngine, check_engine, parse_arguments
from trtspec.backends.tensorrt_llm.placement import LAUNCH
from trtspec.backends.tensorrt_llm.toolchain import EngineToolchain, probe_toolchain
from trtspec.checkpoints.source import MAX_CONFIG_BYTES, read_json
from trtspec.core.errors import StepError
from trtspec.store import artifact_paths
from trtspec.store.files import Files
from trtspec.store.step import Inputs, Step, StepProgress

_VERSION = re.compile(r"TensorRT[- ]LLM version: (\S+)")
_PHASES = (
    (re.compile(r"Total time of constructing network"), "network constructed"),
    (re.compile(r"Build TensorRT engine "), "TensorRT is building"),
    (re.compile(r"Serializing engine to "), "writing the engine"),
)
TIMING_CACHE = "timing.cache"
REPRODUCE = "reproduce.sh"
# Files created in the container belong to the user who runs the script.
SHELL_USER = "$(id -u):$(id -g)"


def build_listener(ranks: int, wanted: str, progress: StepProgress) -> Callable[[str], None]:
    """Return a callback for trtllm-build's output lines that reports the phases of each rank as progress.

    The callback raises StepError if the output shows another version of TensorRT-LLM than `wanted`.
    """
    begun = Counter[str]()

    def listen(line: str) -> None:
        version = _VERSION.search(line)
        if version and not is_release(version[1], wanted):
            hint = "set engine.version, or another engine.build.image"
            raise StepError(f"TensorRT-LLM {version[1]} is running, but the recipe requires {wanted}", hint=hint)
        if words := next((words for pattern, words in _PHASES if pattern.search(line)), ""):
            begun[words] += 1
            progress.set_message(f"rank {begun[words]} of {ranks}: {words}")

    return listen


@dataclass(frozen=True)
class BuildEngine(Step):
    """Step that runs trtllm-build on a checkpoint; the output is one engine file per rank and a config.json.

    `arguments` are trtllm-build's arguments, without directories and timing cache. `timing_cache` is empty or one input
    file. The build runs in a directory in which `checkpoints/ROLE` and `engines/ROLE` are links to input and output, so
    that the same arguments work in an artifact's root.
    """

    VERSION: ClassVar[int] = 1

    role: str
    checkpoint: ConvertCheckpoint
    arguments: tuple[str, ...]
    toolchain: EngineToolchain
    timing_cache: tuple[Files, ...]
    timeout_s: float = field(metadata={"key": False})

    @property
    def name(self) -> str:
        return f"build-{self.role}"

    @property
    def output_bytes(self) -> int:
        """Return the bytes of the checkpoint as an estimate of the engine's size."""
        return self.checkpoint.output_bytes

    @property
    def num_devices(self) -> int:
        """Return the number of GPUs that build ranks in parallel, which is trtllm-build's option `workers`."""
        return int(parse_arguments(self.arguments).get("workers", 1))

    @property
    def command(self) -> tuple[str, ...]:
        return self.command_for()

    def command_for(self, user: str = "") -> tuple[str, ...]:
        """Return the command line; a container's files belong to `user`, by default the current user."""
        checkpoint, engine = artifact_paths.checkpoint(self.role), artifact_paths.engine(self.role)
        cache = (TIMING_CACHE,) if self.timing_cache else ()
        directories = ("--checkpoint_dir", checkpoint, "--output_dir", engine)
        input_cache = ("--input_timing_cache", TIMING_CACHE) if cache else ()
        return self.toolchain.command(
            (*directories, *input_cache, *self.arguments),
            reads=(checkpoint, *cache),
            writes=engine,
            cid_file=self._cid_file,
            user=user,
        )

    def check_machine(self) -> None:
        """Raise StepError if this machine's builder, GPU or driver is not that of the key."""
        planned = self.toolchain
        image = planned.image if "@" in planned.image else planned.reference
        here = probe_toolchain(image, planned.tensorrt_llm, planned.gpu)
        check_same_tools(self.name, planned.identity, here.identity)

    def run(self, out: Path, inputs: Inputs, progress: StepProgress) -> None:
        """Build the engine and compare it with the request; raise StepError or StepTimeout."""
        if lack := self.toolchain.lack():
            raise StepError(lack.message, hint=lack.hint)
        checkpoint = inputs[self.checkpoint]
        links = {artifact_paths.checkpoint(self.role): checkpoint, artifact_paths.engine(self.role): out}
        with ExitStack() as stack:
            for files in self.timing_cache:
                stack.enter_context(files.unchanged())
                links[TIMING_CACHE] = files.paths[0]
            workdir = stack.enter_context(linked_workdir(out, links))
            listener = build_listener(self.checkpoint.mapping.ranks, self.toolchain.tensorrt_llm, progress)
            tool = Tool(
                self.command,
                cwd=workdir,
                log=log_path(self),
                timeout_s=self.timeout_s,
                variables=visible_gpus(inputs.devices or self.toolchain.devices),
                cleanup=self.toolchain.cleanup(self._cid_file),
            )
            run_tool(tool, listener, on_wait=lambda: progress.advance(0))
        config = read_json(checkpoint / "config.json", MAX_CONFIG_BYTES)
        version, arguments = self.toolchain.tensorrt_llm, parse_arguments(self.arguments)
        check_engine(out, ExpectedEngine(arguments, config, version, find_version_spec(version).modes))

    @property
    def _cid_file(self) -> str:
        return f"{self.role}.cid"


@dataclass(frozen=True)
class DescribeEngines(Step):
    """Step that writes a script to rebuild an artifact's engines with the same arguments, and the launch configuration.

    `launch` is the content of launch.json (see backends/tensorrt_llm/placement.py).
    """

    VERSION: ClassVar[int] = 1

    engines: tuple[BuildEngine, ...]
    launch: str

    def run(self, out: Path, inputs: Inputs, progress: StepProgress) -> None:
        for files in self.engines[0].timing_cache:
            with files.unchanged():
                shutil.copyfile(files.paths[0], out / TIMING_CACHE)
        (out / REPRODUCE).write_text(rebuild_script(self._comments(), self._commands()))
        (out / LAUNCH).write_text(self.launch + "\n")

    def _comments(self) -> Iterator[str]:
        toolchain = self.engines[0].toolchain
        yield "Builds the engines of this artifact again, below a new directory: sh reproduce.sh DIRECTORY"
        yield f"TensorRT-LLM {toolchain.tensorrt_llm}, TensorRT {toolchain.tensorrt}, driver {toolchain.driver}"
        yield f"GPU {toolchain.gpu}, compute capability {toolchain.sm // 10}.{toolchain.sm % 10}"

    def _commands(self) -> Iterator[str]:
        if self.engines[0].timing_cache:
            yield f'ln -s "$artifact/{TIMING_CACHE}" {TIMING_CACHE}'
        for engine in self.engines:
            yield f"mkdir -p engines/{engine.role}"
            yield " ".join(map(_quoted, engine.command_for(SHELL_USER)))


def _quoted(word: str) -> str:
    """Quote a word for the shell, except SHELL_USER, which the shell must expand."""
    return f'"{word}"' if word.endswith(SHELL_USER) else shlex.quote(word)
