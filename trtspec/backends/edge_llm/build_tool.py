# SPDX-License-Identifier: Apache-2.0
"""The step that runs one of Edge-LLM's commands, and the one that writes down how engines are built elsewhere."""

from __future__ import annotations

import json
import os
import shlex
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from trtspec.backends.common.runner import Tool, run_tool
from trtspec.backends.edge_llm.arguments import BUILD, DATASET_VARIABLE, PROMPTS, QUANTIZE, staged
from trtspec.backends.edge_llm.validate import CHECKPOINT, ENGINES, EXPORTED, SIZES, check_engines, check_files
from trtspec.checkpoints.rendered_text import Rendered
from trtspec.checkpoints.tokenizer import Tokenizer
from trtspec.core.paths import cache_dir
from trtspec.engine.prompts.load import load_prompts
from trtspec.store.artifact_paths import checkpoint
from trtspec.store.files import Files
from trtspec.store.step import Inputs, Progress, Step

REPRODUCE = "reproduce.sh"
NO_KEY = {"key": False}


@dataclass(frozen=True)
class RunEdgeTool(Step):
    """Run a command where its words lead into the store: checkpoints, and below `writes` its own output.

    `argv` is the command, `action` and `role` name the step; `checkpoints` are what it reads, of the roles in `reads`.
    `version` is Edge-LLM's and `machine` what engines depend on besides, "" for what any machine makes alike.
    `prompts`, of which the first `samples` are read, calibrate.
    """

    VERSION: ClassVar[int] = 1

    action: str
    role: str
    argv: tuple[str, ...]
    reads: tuple[str, ...]
    checkpoints: tuple[Step, ...]
    writes: str
    version: str
    machine: str = ""
    prompts: tuple[Files, ...] = ()
    samples: int = 0
    timeout_s: float = field(default=14400.0, metadata=NO_KEY)
    directory: str = field(default="", metadata=NO_KEY)
    stored_bytes: int = field(default=0, metadata=NO_KEY)

    @property
    def name(self) -> str:
        """Return `quantize-target`, `export-draft`, `build-engines` or the like."""
        return f"{self.action}-{self.role}"

    @property
    def output_bytes(self) -> int:
        """Return the bytes of the checkpoint's tensors, which all of these hold in some form."""
        return self.stored_bytes

    @property
    def num_devices(self) -> int:
        """Return 1 for what computes on a GPU."""
        return 1 if self.machine or "cuda" in self.argv else 0

    @property
    def command(self) -> tuple[str, ...]:
        """Return the argv."""
        return self.argv

    @property
    def log(self) -> Path:
        """Return where the command's words go; they are told with every failure, and stay."""
        return cache_dir() / "logs" / f"{self.name}-{self.key[:12]}.log"

    def run(self, out: Path, inputs: Inputs, progress: Progress) -> None:
        """Run it, and look at what it left; raises StepError and StepTimeout."""
        progress.say(self.argv[0])
        with self._workdir(out, inputs) as workdir:
            variables = self._variables(workdir, inputs.devices)
            tool = Tool(self.argv, cwd=workdir, log=self.log, timeout_s=self.timeout_s, variables=variables)
            run_tool(tool, on_wait=lambda: progress.advance(0))
        self._check(out)

    @contextmanager
    def _workdir(self, out: Path, inputs: Inputs) -> Iterator[Path]:
        """Make a directory with the names that the command uses; what else is written there is thrown away."""
        # beside the output, where the store clears up after a run that was killed
        with ExitStack() as stack:
            workdir = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=out.parent, prefix="work-")))
            place = staged if self.argv[0] == QUANTIZE else checkpoint
            links = {place(role): inputs[step] for role, step in zip(self.reads, self.checkpoints, strict=True)}
            for name, target in (links | {self.writes: out}).items():
                (workdir / name).parent.mkdir(exist_ok=True)
                (workdir / name).symlink_to(target.absolute())
            for files in self.prompts:
                stack.enter_context(files.unchanged())
                prompts = load_prompts(files.paths[0], links[place(self.role)])[: self.samples]
                tokenizer = Tokenizer(links[place(self.role)])  # its command adds special tokens to every text
                texts = [
                    (tokenizer.as_plain(each.text) if isinstance(each.text, Rendered) else None) or each.text
                    for each in prompts
                ]
                (workdir / PROMPTS).write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
            yield workdir

    def _variables(self, workdir: Path, devices: tuple[str, ...]) -> dict[str, str]:
        """Return its environment: its own commands first, and no hub."""
        scratch = {"HF_HOME": str(workdir / "hf"), "HF_HUB_OFFLINE": "1", "PYTHONNOUSERSITE": "1"}
        kept = {key: os.environ[key] for key in ("OMP_NUM_THREADS",) if key in os.environ}
        path = {"PATH": os.pathsep.join(filter(None, (self.directory, os.environ.get("PATH", ""))))}
        dataset = {DATASET_VARIABLE: str(workdir / PROMPTS)} if self.prompts else {}
        gpus = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": ",".join(devices)}
        return {**scratch, **kept, **path, **dataset, **(gpus if self.num_devices else {})}

    def _check(self, out: Path) -> None:
        command = self.argv[0]
        if command == BUILD:
            options = dict(zip(self.argv, self.argv[1:], strict=False))
            check_files(out, ENGINES[options["--spec-type"] != "none"], command)
            check_engines(out, {key: int(options[f"--{key.replace('_', '-')}"]) for key in SIZES})
        else:
            check_files(out, CHECKPOINT if command == QUANTIZE else EXPORTED, command)


@dataclass(frozen=True)
class DescribeBuild(Step):
    """Write a script that builds an artifact's engines on the machine that will run them.

    `facts` are what was known of that machine, for whoever reads the script.
    """

    VERSION: ClassVar[int] = 1

    argv: tuple[str, ...]
    facts: tuple[tuple[str, str], ...]

    @property
    def name(self) -> str:
        """Return the step's name."""
        return "describe-engines"

    def run(self, out: Path, inputs: Inputs, progress: Progress) -> None:
        """Write the script."""
        (out / REPRODUCE).write_text("\n".join(self._lines()) + "\n")

    def _lines(self) -> Iterator[str]:
        yield "#!/bin/sh"
        yield "# Builds the engines of this artifact below a new directory: sh reproduce.sh DIRECTORY"
        yield from (f"# {key}: {value}" for key, value in self.facts)
        yield "set -eu"
        yield 'artifact=$(cd "$(dirname "$0")" && pwd)'
        yield 'mkdir "${1:?a new directory for the engines}"'
        yield 'cd "$1"'
        yield 'ln -s "$artifact/checkpoints" checkpoints'
        yield "mkdir engines"
        yield shlex.join(self.argv)


def machine_of(facts: Mapping[str, object]) -> str:
    """Return what decides whether an engine can be loaded, as a step's field."""
    return json.dumps(dict(facts), sort_keys=True)
