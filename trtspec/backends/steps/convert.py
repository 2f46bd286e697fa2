# SPDX-License-Identifier: Apache-2.0
"""The step that converts a Hugging Face checkpoint to a TensorRT-LLM checkpoint."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from trtspec.backends.steps.calibrate import Calibrate
from trtspec.checkpoints.quant.activations import ACTIVATIONS, Activations, load_activations
from trtspec.checkpoints.quant.conversion import Conversion, plan_conversion
from trtspec.checkpoints.quant.scheme import Scheme
from trtspec.checkpoints.rules import Matched
from trtspec.checkpoints.sharding import ParallelMapping
from trtspec.checkpoints.source_model import SourceModel, load_model, with_vocab_size
from trtspec.checkpoints.trtllm import TrtllmQuantization, render_config
from trtspec.core.files import files_fingerprint
from trtspec.methods.base import DraftHead
from trtspec.methods.head_checks import mask_key
from trtspec.methods.source_head import SourceHead, load_head
from trtspec.store.files import Files
from trtspec.store.step import Inputs, Step, StepProgress, notes_dir

ONE_RANK, UNQUANTIZED = ParallelMapping(), Scheme()


@dataclass(frozen=True)
class HeadFiles:
    """A draft head that is stored in the target's checkpoint: its files and the method's options.

    `options` are the recipe's, as JSON; `method_version` is the version of a method from another package.
    """

    method: str
    method_version: str
    options: str
    draft_len: int
    source: Files
    nbytes: int = field(metadata={"key": False})

    def load(self, target: SourceModel) -> SourceHead:
        """Load the head for its target."""
        return load_head(self.source.root, self.method, json.loads(self.options), target, self.draft_len)


@dataclass(frozen=True)
class ConvertCheckpoint(Step):
    """Stream the source's tensors into `config.json` and one file per rank, with a few chunks in memory at a time.

    `role` is "target" or "draft", `source` is config.json and the shards. `family_version` is the version of a family
    from another package. `dtype` is the dtype of weights that `scheme` does not quantize. `calibration` measured the
    activations, and `heads` are draft heads inside the target; both may be empty. The vocabulary is padded to
    `vocab_size` entries; 0 keeps it.
    """

    VERSION: ClassVar[int] = 7
    RESUMABLE: ClassVar[bool] = True

    role: str
    source: Files
    family_version: str
    dtype: str
    mapping: ParallelMapping
    scheme: Scheme
    calibration: tuple[Calibrate, ...]
    heads: tuple[HeadFiles, ...]
    allow_nonfinite: bool
    vocab_size: int
    nbytes: int = field(metadata={"key": False})
    stored_bytes: int = field(default=0, metadata={"key": False})

    @property
    def name(self) -> str:
        """Return `convert-target` or `convert-draft`."""
        return f"convert-{self.role}"

    @property
    def kind(self) -> str:
        """Return the class name and the format of the weights."""
        return f"{super().kind} {self.scheme.weights}"

    @property
    def bare_key(self) -> str:
        """Return the key without heads: conversions with the same bare key have the same target weights."""
        return replace(self, heads=()).key

    @property
    def sources(self) -> tuple[Files, ...]:
        """Return all files that are read."""
        return (self.source, *(head.source for head in self.heads))

    @property
    def total_bytes(self) -> int:
        """Return the bytes of the source's tensors."""
        return self.nbytes

    @property
    def output_bytes(self) -> int:
        """Return the bytes of all ranks' files, as planned from the source's headers."""
        return self.stored_bytes

    def run(self, out: Path, inputs: Inputs, progress: StepProgress) -> Mapping[str, str]:
        """Convert. Raise CheckpointError if the source is inconsistent."""
        measured = [load_activations(inputs[step] / ACTIVATIONS) for step in self.calibration]
        with ExitStack() as unchanged:
            for files in self.sources:
                unchanged.enter_context(files.unchanged())
            return convert_checkpoint(
                self.source.root,
                out,
                self.dtype,
                mapping=self.mapping,
                scheme=self.scheme,
                activations=measured[0] if measured else Activations(),
                load_head=self.heads[0].load if self.heads else None,
                allow_nonfinite=self.allow_nonfinite,
                vocab_size=self.vocab_size,
                on_bytes=progress.advance,
                on_resumed=progress.resume,
                journal=notes_dir(out) / "journal",
                keep_cached=any(files.unproven for files in self.sources),
            )


def convert_checkpoint(
    root: Path,
    out: Path,
    dtype: str = "auto",
    *,
    mapping: ParallelMapping = ONE_RANK,
    scheme: Scheme = UNQUANTIZED,
    activations: Activations | None = None,
    load_head: Callable[[SourceModel], SourceHead] | None = None,
    allow_nonfinite: bool = False,
    vocab_size: int = 0,
    on_bytes: Callable[[int], None] = lambda count: None,
    on_resumed: Callable[[int], None] | None = None,
    journal: Path | None = None,
    threads: int | None = None,
    keep_cached: bool = False,
) -> dict[str, str]:
    """Convert the checkpoint at `root` into `out`; the `journal` of an interrupted conversion resumes it.

    Return the SHA-256 of the ranks' files. `load_head` loads a draft head that is stored with the model. `on_bytes`
    gets the number of source bytes processed since the last call; `on_resumed` (default: `on_bytes`) gets the bytes
    processed before the interruption. Set `keep_cached` if another reader uses the source at the same time, so that the
    page cache is kept. Raise CheckpointError if the source is inconsistent.
    """
    from trtspec.checkpoints.quant.tasks import plan_tasks
    from trtspec.checkpoints.stream import ConversionIssues, run_tasks  # imports numpy, which planning does not need

    model = load_model(root, dtype)
    if vocab_size:
        model = with_vocab_size(model, vocab_size)
    model.check(scheme, mapping)
    head = load_head(model) if load_head else None
    matched, files = model.matched, model.source.files
    if head:
        head.check(mapping)
        matched = Matched(matched.sources | head.matched.sources, matched.skipped)
        files = [*files, *head.source.files]
    plan = plan_model(model, head, mapping, scheme)
    layouts = plan.layouts()
    tasks = plan_tasks(plan, layouts, matched, activations or Activations(), model.prequantized)
    flaws = ConversionIssues(allow_nonfinite)
    stamp = files_fingerprint(files) if journal else ""
    digests = run_tasks(
        out,
        layouts,
        tasks,
        flaws=flaws,
        on_bytes=on_bytes,
        on_resumed=on_resumed or on_bytes,
        journal=journal,
        stamp=stamp,
        threads=threads,
        keep_cached=keep_cached,
    )
    rendered = _render_config(plan, head.head if head else None) | mask_key(model.source)
    (out / "config.json").write_text(json.dumps(rendered, indent=2) + "\n")
    return digests


def plan_model(model: SourceModel, head: SourceHead | None, mapping: ParallelMapping, scheme: Scheme) -> Conversion:
    """Return the conversion plan of a model's tensors and of a head that is stored with it."""
    rules = [*model.rules, *(head.rules if head else ())]
    return plan_conversion(model.config, rules, mapping, model.scheme(scheme))


def _render_config(plan: Conversion, head: DraftHead | None) -> dict[str, Any]:
    """Return config.json of a model and of the head inside it."""
    rendered = plan.render_config()
    if head is None:
        return rendered
    if "exclude_modules" in rendered["quantization"]:
        rendered["quantization"]["exclude_modules"] += head.excluded
    models = {key: render_config(model, plan.mapping, TrtllmQuantization()) for key, model in head.models.items()}
    return rendered | models | head.config
