# SPDX-License-Identifier: Apache-2.0
"""The steps that write the files around an artifact's checkpoints: copies, compiled kernels, the Triton repository."""

from __future__ import annotations

import shutil
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from trtspec.core.errors import TrtspecError
from trtspec.core.files import map_in_threads
from trtspec.core.gpus import find_gpu
from trtspec.core.hashing import Segments, copy_hashed, file_sha256
from trtspec.core.paths import model_repository_dir
from trtspec.kernels.build import HOST_PLUGINS, LIBRARY, LibrarySpec, build_library, gpu_architecture, plan_library
from trtspec.serving.triton.names import ENSEMBLE, POSTPROCESSING, PREPROCESSING, TARGET
from trtspec.serving.triton.repository_writer import Parameters, ServingSettings, emit_model
from trtspec.store.artifact_paths import TOKENIZER, from_model
from trtspec.store.files import Files
from trtspec.store.step import Inputs, Step, StepProgress

TEXT_MODELS = (ENSEMBLE, PREPROCESSING, TARGET, POSTPROCESSING)


@dataclass(frozen=True)
class CopyFiles(Step):
    """Copy files under their names; `what` ("tokenizer", "prompts") is part of the step's name."""

    VERSION: ClassVar[int] = 1

    what: str
    source: Files

    @property
    def name(self) -> str:
        return f"copy-{self.what}"

    @property
    def sources(self) -> tuple[Files, ...]:
        return (self.source,)

    @property
    def output_bytes(self) -> int:
        return sum(size for size, _ in self.source.stats)

    @property
    def total_bytes(self) -> int:
        return self.output_bytes

    def run(self, out: Path, inputs: Inputs, progress: StepProgress) -> Mapping[str, Segments]:
        """Copy the files in parallel and return their segments by name."""

        def copy(path: Path) -> Segments:
            return copy_hashed(path, out / path.name, progress.advance)

        with self.source.unchanged():
            return dict(
                zip((path.name for path in self.source.paths), map_in_threads(copy, self.source.paths), strict=True)
            )


def plan_recipe_library(plugins: Sequence[str], gpu: str) -> LibrarySpec:
    """Return the library of a recipe's plugins for CPUs and, unless `gpu` is "", for that GPU.

    Raise TrtspecError for a plugin that artifacts cannot use, an unsupported plugin or GPU, and a missing compiler.
    """
    for name in plugins:
        if name in HOST_PLUGINS:
            raise TrtspecError(f"{name} is used by builds only, not by engines", hint=f"remove {name}")
    return plan_library(tuple(plugins), (gpu_architecture(find_gpu(gpu).sm),) if gpu else ())


@dataclass(frozen=True)
class CompilePlugins(Step):
    """Compile a recipe's plugins into one shared library; the sources and compilers are part of the step's key."""

    VERSION: ClassVar[int] = 1

    library: LibrarySpec

    @property
    def name(self) -> str:
        return "compile-plugins"

    def run(self, out: Path, inputs: Inputs, progress: StepProgress) -> None:
        """Write the library, from the cache if it was compiled before. Raise StepError or StepTimeout."""
        progress.set_message(" ".join(self.library.plugins))
        shutil.copyfile(build_library(self.library), out / LIBRARY)


@dataclass(frozen=True)
class EmitRepository(Step):
    """Write the models with a recipe's values; `models` are the hand-written ones and their digests (`read_models`)."""

    VERSION: ClassVar[int] = 3

    models: tuple[tuple[str, str], ...]

    @property
    def name(self) -> str:
        return "emit-repository"

    def run(self, out: Path, inputs: Inputs, progress: StepProgress) -> None:
        self.emit(out)

    @abstractmethod
    def emit(self, out: Path) -> None:
        """Write the models below `out`, an empty directory."""


@dataclass(frozen=True)
class EmitModels(EmitRepository):
    """Write the models of these names, with the same settings and parameters, and further files.

    A model's source is in the folder `own` of the backend's hand-written models, or else a shared one. `documents` are
    the texts of files by their paths in the repository.
    """

    serving: ServingSettings
    names: tuple[str, ...]
    parameters: Parameters
    documents: dict[str, str] = field(default_factory=dict)
    own: Path | None = field(default=None, metadata={"key": False})

    def emit(self, out: Path) -> None:
        for name in self.names:
            own = self.own / name if self.own else None
            emit_model(out, name, self.serving, self.parameters, source=own if own and own.is_dir() else None)
        for path, text in self.documents.items():
            (out / path).write_text(text, encoding="utf-8")


def token_models(
    own: Path,
    serving: ServingSettings,
    documents: Mapping[str, str],
    *,
    max_input_len: int,
    max_seq_len: int,
    gpu_ids: Sequence[int] = (),
    greedy_only: bool = False,
) -> EmitModels:
    """Return the step that emits a backend's own model of tokens, which starts its engine from documents.

        ensemble -> tensorrt_llm
        preprocessing, postprocessing: for clients that call tensorrt_llm directly

    `own` is the folder of its models. The paths in the `documents`, by file name, are relative to the model's
    directory. Lengths are in tokens. `gpu_ids` are the GPUs that are visible to the engine, all if empty. `greedy_only`
    rejects sampled requests.
    """
    parameters: Parameters = {
        "tokenizer_dir": from_model(TOKENIZER),
        "max_input_len": max_input_len,
        "max_seq_len": max_seq_len,
        "gpu_device_ids": ",".join(map(str, gpu_ids)),
        "greedy_only": greedy_only,
    }
    files = {f"{TARGET}/1/{name}": text for name, text in documents.items()}
    return EmitModels(read_models(own), serving, TEXT_MODELS, parameters, files, own)


def read_models(own: Path | None = None) -> tuple[tuple[str, str], ...]:
    """Return (relative path, SHA-256) of every hand-written model file, shared or the backend's `own`, sorted."""
    return tuple(sorted(found for root in (model_repository_dir(), own) if root for found in _digests(root)))


def _digests(root: Path) -> list[tuple[str, str]]:
    files = (path for path in root.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return [(path.relative_to(root).as_posix(), file_sha256(path)) for path in files]
