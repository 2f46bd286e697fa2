# SPDX-License-Identifier: Apache-2.0
"""The step that builds a TensorRT engine of a converted checkpoint, and the one that writes down how."""

from __future__ import annotations

import shlex
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from trtspec.backends.common.runner import Tool, run_tool
from trtspec.backends.common.trtllm_versions import version_spec_of
from trtspec.backends.common.trtllm_versions.containers import is_release
from trtspec.backends.steps.convert import ConvertCheckpoint
from trtspec.backends.tensorrt_llm.build_log import Phases, version_said
from trtspec.backends.tensorrt_llm.engine_dir import Expected, check_engine, parse_arguments
from trtspec.backends.tensorrt_llm.placement import LAUNCH
from trtspec.backends.tensorrt_llm.toolchain import EngineToolchain
from trtspec.checkpoints.source import MAX_CONFIG_BYTES, read_json
from trtspec.core.errors import StepError
from trtspec.core.paths import cache_dir
from trtspec.store import artifact_paths
from trtspec.store.files import Files
from trtspec.store.step import Inputs, Progress, Step

TIMING_CACHE = "timing.cache"
REPRODUCE = "reproduce.sh"
# Whoever runs the script owns the files that it makes.
SHELL_USER = "$(id -u):$(id -g)"


@dataclass(frozen=True)
class BuildEngine(Step):
    """Run trtllm-build on a checkpoint: one engine file a rank, and the config.json that describes them.

    `arguments` are all of its own but the directories and timing caches; `timing_cache` is one file that the build
    starts from, or none. It runs where `checkpoints/ROLE` and `engines/ROLE` lead to input and output, so that its
    words are the same as below an artifact's root.
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
        """Return `build-target` or `build-draft`."""
        return f"build-{self.role}"

    @property
    def output_bytes(self) -> int:
        """Return the bytes of the checkpoint, whose weights an engine holds."""
        return self.checkpoint.output_bytes

    @property
    def num_devices(self) -> int:
        """Return the GPUs that ranks are built on at the same time, as trtllm-build's workers are counted."""
        return int(parse_arguments(self.arguments).get("workers", 1))

    @property
    def command(self) -> tuple[str, ...]:
        """Return the argv."""
        return self.command_for()

    def command_for(self, user: str = "") -> tuple[str, ...]:
        """Return the argv where a container's files belong to `user`, by default to us."""
        checkpoint, engine = artifact_paths.checkpoint(self.role), artifact_paths.engine(self.role)
        cache = (TIMING_CACHE,) if self.timing_cache else ()
        directories = ("--checkpoint_dir", checkpoint, "--output_dir", engine)
        started_from = ("--input_timing_cache", TIMING_CACHE) if cache else ()
        return self.toolchain.command(
            (*directories, *started_from, *self.arguments),
            reads=(checkpoint, *cache),
            writes=engine,
            cid_file=self._cid_file,
            user=user,
        )

    @property
    def log(self) -> Path:
        """Return where the build's words go; they are told with every failure, and stay."""
        return cache_dir() / "logs" / f"{self.name}-{self.key[:12]}.log"

    def run(self, out: Path, inputs: Inputs, progress: Progress) -> None:
        """Build, and hold the engine against what was asked for; raises StepError and StepTimeout."""
        self.toolchain.check_present()
        checkpoint = inputs[self.checkpoint]
        with self._workdir(checkpoint, out) as workdir:
            tool = Tool(
                self.command,
                cwd=workdir,
                log=self.log,
                timeout_s=self.timeout_s,
                variables=_device_variables(inputs.devices or self.toolchain.devices),
                cleanup=self.toolchain.cleanup(self._cid_file),
            )
            run_tool(tool, self._listener(progress), on_wait=lambda: progress.advance(0))
        check_engine(out, self._expected(checkpoint))

    @property
    def _cid_file(self) -> str:
        return f"{self.role}.cid"

    @contextmanager
    def _workdir(self, checkpoint: Path, out: Path) -> Iterator[Path]:
        """Make a directory with the names that the command uses; what else is written there is thrown away."""
        with ExitStack() as stack:
            # beside the output, where the store clears up after a build that was killed
            workdir = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=out.parent, prefix="work-")))
            links = {artifact_paths.checkpoint(self.role): checkpoint, artifact_paths.engine(self.role): out}
            for files in self.timing_cache:
                stack.enter_context(files.unchanged())
                links[TIMING_CACHE] = files.paths[0]
            for name, target in links.items():
                (workdir / name).parent.mkdir(exist_ok=True)
                (workdir / name).symlink_to(target.absolute())
            yield workdir

    def _listener(self, progress: Progress) -> Callable[[str], None]:
        """Return what follows the build's words: it tells its phases, and ends one of another version at once."""
        phases, wanted = Phases(self.checkpoint.mapping.ranks), self.toolchain.tensorrt_llm

        def listen(line: str) -> None:
            version = version_said(line)
            if version is not None and not is_release(version, wanted):
                hint = "set engine.version, or another engine.build.image"
                raise StepError(f"TensorRT-LLM {version} runs, and the recipe is for {wanted}", hint=hint)
            if phase := phases.read(line):
                progress.say(phase)

        return listen

    def _expected(self, checkpoint: Path) -> Expected:
        version = self.toolchain.tensorrt_llm
        config = read_json(checkpoint / "config.json", MAX_CONFIG_BYTES)
        return Expected(parse_arguments(self.arguments), config, version, version_spec_of(version).modes)


def _device_variables(devices: tuple[str, ...]) -> dict[str, str]:
    """Return the environment that shows a build these GPUs alone, counted as nvidia-smi counts them."""
    return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": ",".join(devices)}


@dataclass(frozen=True)
class DescribeEngines(Step):
    """Write down how an artifact's engines are built again, with the very same words, and where they run.

    `launch` is the content of launch.json (backends/tensorrt_llm/placement.py).
    """

    VERSION: ClassVar[int] = 1

    engines: tuple[BuildEngine, ...]
    launch: str

    @property
    def name(self) -> str:
        """Return the step's name."""
        return "describe-engines"

    def run(self, out: Path, inputs: Inputs, progress: Progress) -> None:
        """Write the script, the timing cache that it needs, if there is one, and launch.json."""
        for files in self.engines[0].timing_cache:
            with files.unchanged():
                shutil.copyfile(files.paths[0], out / TIMING_CACHE)
        (out / REPRODUCE).write_text("\n".join(self._lines()) + "\n")
        (out / LAUNCH).write_text(self.launch + "\n")

    def _lines(self) -> Iterator[str]:
        toolchain = self.engines[0].toolchain
        yield "#!/bin/sh"
        yield "# Builds the engines of this artifact again, below a new directory: sh reproduce.sh DIRECTORY"
        yield f"# TensorRT-LLM {toolchain.tensorrt_llm}, TensorRT {toolchain.tensorrt}, driver {toolchain.driver}"
        yield f"# GPU {toolchain.gpu}, compute capability {toolchain.sm // 10}.{toolchain.sm % 10}"
        yield "set -eu"
        yield 'artifact=$(cd "$(dirname "$0")" && pwd)'
        yield 'mkdir "${1:?a new directory for the engines}"'
        yield 'cd "$1"'
        yield 'ln -s "$artifact/checkpoints" checkpoints'
        if self.engines[0].timing_cache:
            yield f'ln -s "$artifact/{TIMING_CACHE}" {TIMING_CACHE}'
        for engine in self.engines:
            yield f"mkdir -p engines/{engine.role}"
            yield " ".join(map(_quoted, engine.command_for(SHELL_USER)))


def _quoted(word: str) -> str:
    """Return a word for the shell, which is to fill in the user itself."""
    return f'"{word}"' if word.endswith(SHELL_USER) else shlex.quote(word)
