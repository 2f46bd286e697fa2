# SPDX-License-Identifier: Apache-2.0
"""Steps that the artifacts of several backends share: checkpoints, tokenizer, prompts, plugins, Triton repository."""

from __future__ import annotations

import json
import shutil
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from trtspec.backends.base import SHARED_MODELS, ArtifactPlan
from trtspec.backends.common.build_tools import check_same_tools
from trtspec.backends.common.convert import Calibrate, ConvertCheckpoint, ConvertOtherVocabulary, HeadFiles, plan_model
from trtspec.backends.context import PlanContext
from trtspec.checkpoints.generation_config import CONFIG
from trtspec.checkpoints.source_model import SourceModel, parallel_mapping, requested_scheme
from trtspec.core.errors import TrtspecError
from trtspec.core.files import can_share_blocks, map_in_threads
from trtspec.core.gpus import find_gpu
from trtspec.core.hashing import Segments, copy_hashed, file_sha256
from trtspec.core.paths import calibration_prompts, model_repository_dir
from trtspec.kernels.build import HOST_PLUGINS, LIBRARY, LibrarySpec, build_library, gpu_architecture, plan_library
from trtspec.methods.base import method_version
from trtspec.methods.draft_head import SourceHead
from trtspec.recipe.resolve import ResolvedModel
from trtspec.serving.triton.names import ENSEMBLE, POSTPROCESSING, PREPROCESSING, TARGET
from trtspec.serving.triton.repository_writer import CONFIG as MODEL_CONFIG
from trtspec.serving.triton.repository_writer import Parameters, ServingSettings, emit_model
from trtspec.store.artifact_paths import BYTE_CODE, PLUGINS, PROMPTS, REPOSITORY, TOKENIZER, checkpoint, from_model
from trtspec.store.files import FileReader, Files
from trtspec.store.step import Inputs, Step, StepProgress

TEXT_MODELS = (ENSEMBLE, PREPROCESSING, TARGET, POSTPROCESSING)
TEXT_INPUTS = SHARED_MODELS / "text_inputs.pbtxt"
# Checkpoints of target and draft, relative to a model's directory in the repository.
SERVED_PATHS = (from_model(checkpoint("target")), from_model(checkpoint("draft")))

MAX_SHARED_COPY_BYTES = 256 << 20


@dataclass(frozen=True)
class CopyFiles(Step):
    """Step that copies files under their own names; `what`, such as "tokenizer", is part of the step's name."""

    VERSION: ClassVar[int] = 1
    HASHES_SOURCES: ClassVar[bool] = True

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

    def disk_bytes(self, directory: Path) -> int:
        paths = self.source.paths
        return 0 if paths and all(can_share_blocks(path, directory) for path in paths) else self.output_bytes

    @property
    def total_bytes(self) -> int:
        return self.output_bytes

    @property
    def is_shared(self) -> bool:
        """Whether a team store gets the copy: not copies of weights, whose source each machine can have as fast."""
        return self.output_bytes <= MAX_SHARED_COPY_BYTES

    def run(self, out: Path, inputs: Inputs, progress: StepProgress) -> Mapping[str, Segments]:
        """Copy the files in parallel; return the segment digests (see core/hashing.py) by file name."""
        paths = self.source.paths
        with self.source.unchanged():
            copied = map_in_threads(lambda path: copy_hashed(path, out / path.name, progress.advance), paths)
        segments = dict(zip(paths, copied, strict=True))
        inputs.found_digests |= self.source.found_digests(segments)
        return {path.name: each for path, each in segments.items()}


def plan_recipe_library(plugins: Sequence[str], gpu: str) -> LibrarySpec:
    """Return the spec of the library with a recipe's plugins, for CPUs and for the GPU named `gpu` unless it is "".

    Raise TrtspecError for a plugin that only builds use, an unsupported plugin or GPU, and a missing compiler.
    """
    for name in plugins:
        if name in HOST_PLUGINS:
            raise TrtspecError(f"{name} is used by builds only, not by engines", hint=f"remove {name}")
    return plan_library(tuple(plugins), (gpu_architecture(find_gpu(gpu).sm),) if gpu else ())


@dataclass(frozen=True)
class CompilePlugins(Step):
    """Step that compiles a recipe's plugins into one shared library; sources and compilers are part of its key."""

    VERSION: ClassVar[int] = 1

    library: LibrarySpec

    def check_machine(self) -> None:
        """Raise StepError if this machine's compilers are not those of the key."""
        here = plan_library(self.library.plugins, self.library.architectures)
        check_same_tools(self.name, self.library.identity, here.identity)

    def run(self, out: Path, inputs: Inputs, progress: StepProgress) -> None:
        """Compile the library, or copy it from the cache. Raise StepError or StepTimeout if compilation fails."""
        progress.set_message(" ".join(self.library.plugins))
        shutil.copyfile(build_library(self.library), out / LIBRARY)


@dataclass(frozen=True)
class EmitRepository(Step):
    """Base of the steps that write a Triton model repository for a recipe.

    `models` are the paths and digests of trtspec's model files (see `read_models`), so that a changed file changes the
    key.
    """

    VERSION: ClassVar[int] = 3

    models: tuple[tuple[str, str], ...]

    @property
    def name(self) -> str:
        return "emit-repository"

    def run(self, out: Path, inputs: Inputs, progress: StepProgress) -> None:
        self.emit(out)

    @abstractmethod
    def emit(self, out: Path) -> None:
        """Write the models to the empty directory `out`."""


@dataclass(frozen=True)
class EmitModels(EmitRepository):
    """Step that writes the named models, all with the same settings and parameters, and further files.

    A model's files come from the backend's own folder `own` if they exist there, otherwise from the shared models.
    `shared` are the parts of the configurations that several backends share, by model.
    `documents` are the contents of the further files, by path in the repository.
    """

    serving: ServingSettings
    names: tuple[str, ...]
    parameters: Parameters
    documents: dict[str, str] = field(default_factory=dict)
    own: Path | None = field(default=None, metadata={"key": False})
    shared: Mapping[str, Path] = field(default_factory=dict, metadata={"key": False})

    def emit(self, out: Path) -> None:
        for name in self.names:
            source = self.own / name if self.own and (self.own / name).is_dir() else None
            emit_model(out, name, self.serving, self.parameters, source=source, config_file=self.shared.get(name))
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
    greedy_only: bool | None = False,
    structured_output: bool = False,
    draft_len: int = 0,
) -> EmitModels:
    """Return the step that emits the repository of a backend whose Python model runs its engine on token ids.

        ensemble -> tensorrt_llm
        preprocessing, postprocessing: for clients that call tensorrt_llm directly

    `own` is the folder of the backend's models. `documents` are the files with the engine's arguments, by name; paths
    in them are relative to the model's directory. Lengths are in tokens. `gpu_ids` are the GPUs that are visible to the
    engine; empty means all. With `greedy_only`, sampled requests are rejected; None is for engines that always sample.
    Without `structured_output`, requests with a grammar are rejected. `draft_len` is the number of tokens that the
    engine drafts, which requests cannot change.
    """
    parameters: Parameters = {
        "tokenizer_dir": from_model(TOKENIZER),
        "max_input_len": max_input_len,
        "max_seq_len": max_seq_len,
        "gpu_device_ids": ",".join(map(str, gpu_ids)),
        "greedy_only": greedy_only,
        "structured_output": structured_output,
        "draft_len": draft_len,
    }
    files = {f"{TARGET}/1/{name}": text for name, text in documents.items()}
    shared = {TARGET: SHARED_MODELS / TARGET / MODEL_CONFIG}
    return EmitModels(read_models(SHARED_MODELS, own), serving, TEXT_MODELS, parameters, files, own, shared)


def read_models(*own: Path) -> tuple[tuple[str, str], ...]:
    """Return the sorted (relative path, SHA-256) of every model file of trtspec: shared ones and those in `own`."""
    found: list[tuple[str, str]] = []
    for root in (model_repository_dir(), *own):
        files = (path for path in root.rglob("*") if path.is_file() and BYTE_CODE not in path.parts)
        found += [(path.relative_to(root).as_posix(), file_sha256(path)) for path in files]
    return tuple(sorted(found))


def conversion_steps(context: PlanContext, reader: FileReader) -> dict[str, ConvertCheckpoint]:
    """Return the conversion steps by role: "target", and "draft" if there is a draft model."""
    recipe = context.resolved
    if context.target is None:
        raise ValueError("only a model with a family can be converted")
    heads: tuple[HeadFiles, ...] = ()
    if context.head:  # stored with the target
        speculation, source = recipe.speculation, context.head.source
        files = reader.read(source.root, [*source.documents, *source.weight_files])
        options, version = json.dumps(speculation.options, sort_keys=True), method_version(speculation.method)
        heads = (HeadFiles(speculation.method, version, options, speculation.draft_len, files, source.nbytes),)
    found = {"target": _convert(reader, "target", recipe.target, context.target, heads, context.head)}
    if context.draft:
        found["draft"] = _convert(reader, "draft", recipe.speculation.drafts[0], context.draft)
    if context.translates:
        sources = context.sources["target"], context.sources["draft"]
        target, draft = (reader.read(source.root, source.tokenizer_files) for source in sources)
        found["draft"] = ConvertOtherVocabulary.of(found["draft"], (target, draft), context.target.config.vocab_size)
    return found


def copy_steps(context: PlanContext, reader: FileReader) -> dict[str, CopyFiles]:
    """Return steps that copy each checkpoint unchanged, by directory in the artifact."""
    return {
        checkpoint(role): CopyFiles(role, reader.read(source.root, source.files))
        for role, source in context.sources.items()
    }


def padding_notes(context: PlanContext) -> tuple[str, ...]:
    """Return a note if the draft's vocabulary is padded or cut to the target's size."""
    draft = context.draft
    if draft is None or not draft.padded_to:
        return ()
    stored = draft.source.config["vocab_size"]
    what = "padded with zeros" if stored < draft.padded_to else "cut"
    return (f"the draft's embedding and head are {what} from {stored} to the target's {draft.padded_to} rows",)


def plan_source_artifact(
    context: PlanContext,
    reader: FileReader,
    package: str,
    repository: EmitRepository,
    facts: Mapping[str, Any],
    problems: Callable[[], list[str]] = list,
) -> ArtifactPlan:
    """Return the artifact plan of a backend whose engine, the Python package `package`, runs checkpoints unchanged."""
    steps = {**copy_steps(context, reader), **companion_steps(context, reader), REPOSITORY: repository}
    gpu = {"name": name} if (name := context.resolved.engine.gpu) else {}
    return ArtifactPlan(steps, tools={package: context.version}, gpu=gpu, facts=facts, problems=problems)


def serving_settings(context: PlanContext) -> ServingSettings:
    serving = context.resolved.serving
    return ServingSettings(
        max_batch_size=context.resolved.engine.max_batch_size,
        max_queue_size=serving.max_queue_size,
        max_queue_delay_us=serving.max_queue_delay_us,
        streaming=serving.streaming,
        warmup=serving.warmup,
        defaults=serving.defaults,
    )


def companion_steps(context: PlanContext, reader: FileReader) -> dict[str, Step]:
    """Return the steps for files next to the checkpoints: tokenizer, the prompts of the gates, compiled plugins."""
    recipe, source = context.resolved, context.sources["target"]
    # config.json can be the only file with the end-of-text ids
    documents = [*source.tokenizer_files, source.root / CONFIG]
    steps: dict[str, Step] = {TOKENIZER: CopyFiles("tokenizer", reader.read(source.root, documents))}
    if recipe.gates.prompts:
        prompts = Path(recipe.gates.prompts)
        steps[PROMPTS] = CopyFiles("prompts", reader.read(prompts.parent, [prompts]))
    if recipe.plugins:
        probe = partial(plan_recipe_library, recipe.plugins, recipe.engine.gpu)
        steps[PLUGINS] = CompilePlugins(context.builder_tools(probe))
    return steps


def read_calibration(reader: FileReader, path: str | None) -> Files:
    """Return the file of calibration prompts at `path`, or trtspec's own prompts if it is None."""
    prompts = Path(path) if path else calibration_prompts()
    return reader.read(prompts.parent, [prompts])


def _convert(
    reader: FileReader,
    role: str,
    asked: ResolvedModel,
    model: SourceModel,
    heads: tuple[HeadFiles, ...] = (),
    head: SourceHead | None = None,
) -> ConvertCheckpoint:
    source, wanted = model.source, requested_scheme(asked)
    weights = reader.read(source.root, [*source.documents, *source.weight_files])
    calibration: tuple[Calibrate, ...] = ()
    if model.needs_calibration(wanted):
        settings = asked.quantization.calibration
        calibration = (
            Calibrate(
                role,
                weights,
                tokenizer=reader.read(source.root, source.tokenizer_files),
                prompts=read_calibration(reader, settings.prompts),
                samples=settings.samples,
                max_len=settings.max_len,
                nbytes=source.nbytes,
            ),
        )
    layouts = plan_model(model, head, parallel_mapping(asked), wanted).layouts()
    return ConvertCheckpoint(
        role,
        weights,
        model.family_version,
        asked.dtype,
        mapping=parallel_mapping(asked),
        scheme=model.scheme(wanted),
        calibration=calibration,
        heads=heads,
        allow_nonfinite=asked.allow_nonfinite,
        vocab_size=model.padded_to,
        nbytes=source.nbytes + sum(each.nbytes for each in heads),
        stored_bytes=sum(layout.nbytes for layout in layouts),
    )
