# SPDX-License-Identifier: Apache-2.0
"""Steps of Edge-LLM's artifacts: stage a checkpoint, run one of Edge-LLM's commands, write a build script."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping
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
from trtspec.backends.common.steps import CopyFiles
from trtspec.backends.edge_llm.arguments import BUILD, DATASET_VARIABLE, PROMPTS, QUANTIZE, staged
from trtspec.backends.edge_llm.toolchain import installed_release, probe_toolchain
from trtspec.checkpoints.source import MAX_CONFIG_BYTES, read_json
from trtspec.checkpoints.tokenizer import RenderedText, Tokenizer
from trtspec.core.errors import StepError
from trtspec.core.hashing import Segments
from trtspec.engine.prompts.load import load_prompts
from trtspec.store.artifact_paths import checkpoint
from trtspec.store.files import Files
from trtspec.store.step import Inputs, Step, StepProgress

REPRODUCE = "reproduce.sh"
NO_KEY = {"key": False}
# by use of speculation; the names are from experimental/builder/core/contracts.py@0.11.0 and the exporter
ENGINES = {False: ("llm.engine", "config.json"), True: ("spec_base.engine", "spec_draft.engine", "base_config.json")}
EXPORTED = ("llm/model.onnx", "llm/config.json")
CHECKPOINT = ("config.json",)
SIZES = ("max_input_len", "max_kv_cache_capacity", "max_batch_size")
CHAT_TEMPLATE = "chat_template.jinja"
# Export and build fail without a chat template. This one adds nothing to a text; requests contain complete texts.
PLAIN_TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}\n"


def check_files(out: Path, names: tuple[str, ...], command: str) -> None:
    odd = [name for name in names if not (out / name).is_file() or not (out / name).stat().st_size]
    if odd:
        raise StepError(f"{command} succeeded but did not write {', '.join(odd)}", hint="see its log")


def check_engines(out: Path, sizes: Mapping[str, int]) -> None:
    """Raise StepError if the engines in `out` were not built for the requested sizes."""
    config = next(path for path in (out / "base_config.json", out / "config.json") if path.is_file())
    built = read_json(config, MAX_CONFIG_BYTES).get("builder_config")
    found = built if isinstance(built, dict) else {}
    odd = [(key, value) for key, value in sizes.items() if found.get(key) != value]
    if differences := [f"{key} is {found.get(key, 'missing')}, expected {value}" for key, value in odd]:
        raise StepError(f"the engines differ from the request: {'; '.join(differences)}", where=str(config))


@dataclass(frozen=True)
class StageCheckpoint(CopyFiles):
    """Step that copies a checkpoint's files; `what` is its role.

    `plain_template` adds a missing chat template. `target_layers` are the target layers whose inputs an EAGLE-3 drafter
    reads, written to config.json under target_layer_ids. Edge-LLM reads them only under this key and otherwise uses
    EAGLE's default layers (NVIDIA/TensorRT-Edge-LLM:experimental/builder/models/eagle3/configuration.py@0.11.0).
    """

    VERSION: ClassVar[int] = 1

    plain_template: bool = False
    target_layers: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        return f"stage-{self.what}"

    def run(self, out: Path, inputs: Inputs, progress: StepProgress) -> Mapping[str, Segments]:
        copied = super().run(out, inputs, progress)
        if self.plain_template:
            (out / CHAT_TEMPLATE).write_text(PLAIN_TEMPLATE)
        if self.target_layers:
            config = read_json(out / "config.json", MAX_CONFIG_BYTES)
            config["target_layer_ids"] = list(self.target_layers)
            (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        return {name: segments for name, segments in copied.items() if name != "config.json"}


@dataclass(frozen=True)
class RunEdgeTool(Step):
    """Step that runs one of Edge-LLM's commands in a directory with symbolic links to its inputs and its output.

    `argv` is the command; `action` and `role` are the step's name. `checkpoints` are the inputs for the roles in
    `reads`, and `writes` is the output's path in the directory. `version` is Edge-LLM's version. `machine` describes
    the machine on which engines depend; it is "" for portable output. The first `samples` prompts in `prompts` are used
    for calibration.
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
        return f"{self.action}-{self.role}"

    @property
    def output_bytes(self) -> int:
        """Return the bytes of the checkpoint's tensors as an estimate of the output's size."""
        return self.stored_bytes

    @property
    def num_devices(self) -> int:
        return 1 if self.machine or "cuda" in self.argv else 0

    @property
    def command(self) -> tuple[str, ...]:
        return self.argv

    def check_machine(self) -> None:
        """Raise StepError if this machine's Edge-LLM differs from the key's; for engines also TensorRT and driver."""
        planned: dict[str, str] = json.loads(self.machine or "{}")
        if not planned:
            check_same_tools(self.name, [("Edge-LLM", self.version)], [("Edge-LLM", installed_release()[0])])
            return
        here = dict(probe_toolchain(self.version, planned["GPU"].partition(",")[0]).identity)
        check_same_tools(
            self.name, [(name, planned[name]) for name in ("Edge-LLM", "TensorRT", "driver")], here.items()
        )

    def run(self, out: Path, inputs: Inputs, progress: StepProgress) -> None:
        """Run the command and check its output files; raise StepError or StepTimeout."""
        progress.set_message(self.argv[0])
        path_of = staged if self.argv[0] == QUANTIZE else checkpoint
        links = {path_of(role): inputs[step] for role, step in zip(self.reads, self.checkpoints, strict=True)}
        with ExitStack() as stack:
            workdir = stack.enter_context(linked_workdir(out, links | {self.writes: out}))
            for files in self.prompts:
                stack.enter_context(files.unchanged())
                texts = self._texts(files.paths[0], links[path_of(self.role)])
                (workdir / PROMPTS).write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
            variables = self._variables(workdir, inputs.devices)
            tool = Tool(self.argv, cwd=workdir, log=log_path(self), timeout_s=self.timeout_s, variables=variables)
            run_tool(tool, on_wait=lambda: progress.advance(0))
        self._check(out)

    def _texts(self, prompts: Path, source: Path) -> list[str]:
        """Return the calibration texts without special tokens, because the command adds them to each text."""
        tokenizer, chosen = Tokenizer(source), load_prompts(prompts, source)[: self.samples]
        return [
            (tokenizer.as_plain(each.text) if isinstance(each.text, RenderedText) else None) or each.text
            for each in chosen
        ]

    def _variables(self, workdir: Path, devices: tuple[str, ...]) -> dict[str, str]:
        """Return the command's environment: its own directory is first on PATH, and the Hugging Face hub is offline."""
        scratch = {"HF_HOME": str(workdir / "hf"), "HF_HUB_OFFLINE": "1", "PYTHONNOUSERSITE": "1"}
        passed = {key: os.environ[key] for key in ("OMP_NUM_THREADS",) if key in os.environ}
        path = {"PATH": os.pathsep.join(filter(None, (self.directory, os.environ.get("PATH", ""))))}
        dataset = {DATASET_VARIABLE: str(workdir / PROMPTS)} if self.prompts else {}
        return {**scratch, **passed, **path, **dataset, **(visible_gpus(devices) if self.num_devices else {})}

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
    """Step that writes a script to build an artifact's engines; `facts` become comments about the device."""

    VERSION: ClassVar[int] = 1

    argv: tuple[str, ...]
    facts: tuple[tuple[str, str], ...]

    @property
    def name(self) -> str:
        return "describe-engines"

    def run(self, out: Path, inputs: Inputs, progress: StepProgress) -> None:
        title = "Builds the engines of this artifact below a new directory: sh reproduce.sh DIRECTORY"
        comments = (title, *(f"{key}: {value}" for key, value in self.facts))
        (out / REPRODUCE).write_text(rebuild_script(comments, ("mkdir engines", shlex.join(self.argv))))
