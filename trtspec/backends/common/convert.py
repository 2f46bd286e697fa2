# SPDX-License-Identifier: Apache-2.0
"""Steps that convert a Hugging Face checkpoint to a TensorRT-LLM checkpoint.

`Calibrate` measures activations for FP8 scales. `ConvertCheckpoint` converts the weights. `ConvertOtherVocabulary` also
maps the tokens of a draft model whose vocabulary differs from the target's.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

from trtspec.checkpoints.conversion import ACTIVATIONS, Activations, Conversion, load_activations, plan_conversion
from trtspec.checkpoints.quant_scheme import Scheme
from trtspec.checkpoints.rules import Matched
from trtspec.checkpoints.sharding import ParallelMapping
from trtspec.checkpoints.source_model import SourceModel, load_model, with_vocab_size
from trtspec.checkpoints.tokenizer import Tokenizer
from trtspec.checkpoints.translation import VocabMapping
from trtspec.checkpoints.trtllm import TrtllmQuantization, render_config
from trtspec.core.errors import CheckpointError
from trtspec.core.files import files_fingerprint
from trtspec.core.hashing import GrowingDigest, Segments
from trtspec.engine.prompts.load import load_prompts
from trtspec.engine.prompts.prompt import Prompt
from trtspec.methods.base import DraftHead
from trtspec.methods.draft_head import SourceHead, load_head, mask_key
from trtspec.store.digest import compute_digest
from trtspec.store.files import Files, hash_meanwhile, read_sources
from trtspec.store.step import Inputs, Step, StepProgress, notes_dir

ONE_RANK, UNQUANTIZED = ParallelMapping(), Scheme()
NO_DIGESTS: Mapping[Path, GrowingDigest] = MappingProxyType({})


@dataclass(frozen=True)
class Calibrate(Step):
    """Step that runs prompts through the model layer by layer and writes the largest magnitudes to activations.json.

    `source` are config.json and the weight files, `tokenizer` the tokenizer's files, and `prompts` is one file. The
    first `samples` prompts are used, truncated to `max_len` tokens. Messages are rendered with the tokenizer's chat
    template. Unread files are hashed meanwhile.
    """

    VERSION: ClassVar[int] = 2
    RESUMABLE: ClassVar[bool] = True
    HASHES_SOURCES: ClassVar[bool] = True

    role: str
    source: Files
    tokenizer: Files
    prompts: Files
    samples: int
    max_len: int
    nbytes: int = field(metadata={"key": False})

    @property
    def name(self) -> str:
        return f"calibrate-{self.role}"

    @property
    def total_bytes(self) -> int:
        return self.nbytes

    def run(self, out: Path, inputs: Inputs, progress: StepProgress) -> None:
        """Measure activations; raise CheckpointError for an inconsistent source, TrtspecError for an invalid prompt."""
        with hash_meanwhile((self.source, self.tokenizer, self.prompts), inputs):
            prompts = load_prompts(self.prompts.paths[0], self.source.root)[: self.samples]
            notes = notes_dir(out) / "states"
            measured = calibrate_checkpoint(self.source.root, prompts, self.max_len, progress.advance, notes)
            measured.save(out / ACTIVATIONS)


def calibrate_checkpoint(
    root: Path,
    prompts: list[Prompt],
    max_len: int,
    on_bytes: Callable[[int], None] = lambda count: None,
    notes: Path | None = None,
) -> Activations:
    """Return the activations of the checkpoint in `root` on `prompts`, each truncated to `max_len` tokens.

    `on_bytes` receives the number of source bytes processed since its last call. `notes` is a directory with
    intermediate results, from which an interrupted calibration of the same files is resumed. Raise CheckpointError if
    the source, its tokenizer or the measurements are inconsistent.
    """
    from trtspec.engine.calibration import measure  # imports torch, which planning does not need

    model = load_model(root, "auto")
    config = model.config
    scaling = config.rope_scaling
    # LongRoPE's factors for long texts do not apply to typical texts
    most = scaling.original_max_position if scaling and scaling.kind == "longrope" else config.max_positions
    texts = _tokenize(root, prompts, min(max_len, most))
    largest = max(map(max, texts))
    if largest >= config.vocab_size:
        message = f"the tokenizer produces the id {largest}, but the model has {config.vocab_size} entries"
        raise CheckpointError(message, where=str(root), hint="use tokenizer and weights of the same model")
    plus = {rule.name: rule.plus for rule in model.rules}
    stamp = f"{files_fingerprint(model.source.files)} {compute_digest('trtspec.texts/1', texts)}"
    return Activations(**measure(config, model.matched, texts, plus=plus, on_bytes=on_bytes, notes=notes, stamp=stamp))


def _tokenize(root: Path, prompts: list[Prompt], max_len: int) -> list[list[int]]:
    tokenizer = Tokenizer(root)
    texts = [tokenizer.encode(prompt.text)[:max_len] for prompt in prompts]
    if not any(texts):
        hint = "choose other calibration prompts"
        raise CheckpointError("the tokenizer produces no tokens for the prompts", where=str(root), hint=hint)
    return [text for text in texts if text]


@dataclass(frozen=True)
class HeadFiles:
    """The files of a draft head that is converted with its target, and the method's options.

    `options` are the recipe's, as JSON. `method_version` is the version of a method from another package.
    """

    method: str
    method_version: str
    options: str
    draft_len: int
    source: Files
    nbytes: int = field(metadata={"key": False})

    def load(self, target: SourceModel) -> SourceHead:
        return load_head(self.source.root, self.method, json.loads(self.options), target, self.draft_len)


@dataclass(frozen=True)
class ConvertCheckpoint(Step):
    """Step that streams a source's tensors into `config.json` and one file per rank, with only a few chunks in memory.

    `role` is "target" or "draft". `source` are config.json and the weight files. `family_version` is the version of a
    family from another package. `dtype` is the dtype of weights that `scheme` does not quantize. `calibration` is empty
    or the step that measures activations, and `heads` is empty or the draft head in the target. The vocabulary is
    padded to `vocab_size` entries, unless that is 0.
    """

    VERSION: ClassVar[int] = 7
    RESUMABLE: ClassVar[bool] = True
    HASHES_SOURCES: ClassVar[bool] = True

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
        return f"convert-{self.role}"

    @property
    def kind(self) -> str:
        return f"{super().kind} {self.scheme.weights}"

    @property
    def bare_key(self) -> str:
        """Return the step's key without draft heads; conversions with equal bare keys produce equal target weights."""
        return replace(self, heads=()).key

    @property
    def sources(self) -> tuple[Files, ...]:
        return (self.source, *(head.source for head in self.heads))

    @property
    def total_bytes(self) -> int:
        return self.nbytes

    @property
    def output_bytes(self) -> int:
        """Return the bytes of all ranks' files, computed from the source's headers."""
        return self.stored_bytes

    def run(self, out: Path, inputs: Inputs, progress: StepProgress) -> Mapping[str, Segments]:
        """Convert the checkpoint; return segment digests by file. Raise CheckpointError for an inconsistent source."""
        measured = [load_activations(inputs[step] / ACTIVATIONS) for step in self.calibration]
        with read_sources(self.sources, inputs) as digests:
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
                journal=notes_dir(out) / "journal",
                digests=digests,
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
    journal: Path | None = None,
    digests: Mapping[Path, GrowingDigest] = NO_DIGESTS,
    threads: int | None = None,
) -> dict[str, Segments]:
    """Convert the checkpoint in `root` into the directory `out`; return the segment digests of each rank's file.

    `load_head` loads a draft head to be stored with the model. `on_bytes` receives the number of source bytes processed
    since its last call; when resuming, its first call includes those processed earlier. `journal` is the directory from
    which an interrupted conversion is resumed. The bytes read from a file in `digests` are added to its digest.
    `threads` does not change the output and is chosen automatically if None. Raise CheckpointError if the source is
    inconsistent.
    """
    from trtspec.checkpoints.conversion_tasks import plan_tasks
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
    segments = run_tasks(
        out,
        layouts,
        tasks,
        flaws=flaws,
        on_bytes=on_bytes,
        journal=journal,
        stamp=stamp,
        digests=digests,
        threads=threads,
    )
    rendered = _render_config(plan, head.head if head else None) | mask_key(model.source)
    (out / "config.json").write_text(json.dumps(rendered, indent=2) + "\n")
    return segments


def plan_model(model: SourceModel, head: SourceHead | None, mapping: ParallelMapping, scheme: Scheme) -> Conversion:
    """Return the conversion plan for the tensors of a model and of a draft head stored with it."""
    rules = [*model.rules, *(head.rules if head else ())]
    return plan_conversion(model.config, rules, mapping, model.scheme(scheme))


def _render_config(plan: Conversion, head: DraftHead | None) -> dict[str, Any]:
    """Return the config.json of a converted model with its draft head."""
    rendered = plan.render_config()
    if head is None:
        return rendered
    if "exclude_modules" in rendered["quantization"]:
        rendered["quantization"]["exclude_modules"] += head.excluded
    models = {key: render_config(model, plan.mapping, TrtllmQuantization()) for key, model in head.models.items()}
    return rendered | models | head.config


@dataclass(frozen=True, kw_only=True)
class ConvertOtherVocabulary(ConvertCheckpoint):
    """Step that converts a draft model and writes the mapping from its tokens to the target's `target_size` tokens.

    `tokenizers` are the files of the target's and of the draft's tokenizer.
    """

    VERSION: ClassVar[int] = ConvertCheckpoint.VERSION
    RESUMABLE: ClassVar[bool] = True

    tokenizers: tuple[Files, Files]
    target_size: int

    @classmethod
    def of(cls, conversion: ConvertCheckpoint, tokenizers: tuple[Files, Files], target_size: int) -> ConvertCheckpoint:
        """Return a copy of the step `conversion` that also writes the token mapping."""
        same = {field.name: getattr(conversion, field.name) for field in fields(conversion)}
        return cls(**same, tokenizers=tokenizers, target_size=target_size)

    @property
    def sources(self) -> tuple[Files, ...]:
        return (*super().sources, *self.tokenizers)

    def run(self, out: Path, inputs: Inputs, progress: StepProgress) -> Mapping[str, Segments]:
        """Convert the model and write the mapping; raise CheckpointError if the sources are inconsistent."""
        segments = super().run(out, inputs, progress)
        target, draft = (Tokenizer(files.root) for files in self.tokenizers)
        draft_size = load_model(self.source.root, self.dtype).config.vocab_size
        VocabMapping.between(target, draft, self.target_size, draft_size).write(out)
        return segments
