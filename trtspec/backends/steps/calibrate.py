# SPDX-License-Identifier: Apache-2.0
"""The step that measures a model's activations on prompts for FP8 scales."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from trtspec.checkpoints.model_config import ModelConfig
from trtspec.checkpoints.quant.activations import ACTIVATIONS, Activations
from trtspec.checkpoints.source_model import load_model
from trtspec.checkpoints.tokenizer import Tokenizer
from trtspec.core.errors import CheckpointError
from trtspec.core.files import files_fingerprint
from trtspec.engine.prompts.load import load_prompts
from trtspec.engine.prompts.prompt import Prompt
from trtspec.store.digest import compute_digest
from trtspec.store.files import Files
from trtspec.store.step import Inputs, Step, StepProgress, notes_dir


@dataclass(frozen=True)
class Calibrate(Step):
    """Run prompts through the model layer by layer and write the largest magnitudes to `activations.json`.

    `source` is config.json and the shards, `tokenizer` the tokenizer's files, and `prompts` one file. The first
    `samples` prompts are used, cut to `max_len` tokens; messages are rendered by the tokenizer's template.
    """

    VERSION: ClassVar[int] = 2
    RESUMABLE: ClassVar[bool] = True

    role: str
    source: Files
    tokenizer: Files
    prompts: Files
    samples: int
    max_len: int
    nbytes: int = field(metadata={"key": False})

    @property
    def name(self) -> str:
        """Return `calibrate-target` or `calibrate-draft`."""
        return f"calibrate-{self.role}"

    @property
    def total_bytes(self) -> int:
        """Return the bytes of the source's tensors, each of which is read once."""
        return self.nbytes

    def run(self, out: Path, inputs: Inputs, progress: StepProgress) -> None:
        """Calibrate. Raise CheckpointError if the source is inconsistent, TrtspecError for an invalid prompt."""
        with self.source.unchanged(), self.tokenizer.unchanged(), self.prompts.unchanged():
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
    """Measure the checkpoint at `root` on `prompts`, each cut to `max_len` tokens.

    `on_bytes` gets the number of source bytes processed since the last call. `notes` of an interrupted calibration of
    the same files resume it. Raise CheckpointError if the source, its tokenizer or the measurements are inconsistent.
    """
    from trtspec.engine.calibration.measure import measure  # imports torch, which planning does not need

    model = load_model(root, "auto")
    config = model.config
    texts = _tokenize(root, prompts, min(max_len, _most_positions(config)))
    largest = max(map(max, texts))
    if largest >= config.vocab_size:
        message = f"the tokenizer produces the id {largest}, but the model has {config.vocab_size} entries"
        raise CheckpointError(message, where=str(root), hint="use tokenizer and weights of the same model")
    plus = {rule.name: rule.plus for rule in model.rules}
    stamp = f"{files_fingerprint(model.source.files)} {compute_digest('trtspec.texts/1', texts)}"
    return Activations(**measure(config, model.matched, texts, plus=plus, on_bytes=on_bytes, notes=notes, stamp=stamp))


def _most_positions(config: ModelConfig) -> int:
    """Return the length limit of measured texts: LongRoPE's factors for long texts do not apply to typical texts."""
    scaling = config.rope_scaling
    return scaling.original_max_position if scaling and scaling.kind == "longrope" else config.max_positions


def _tokenize(root: Path, prompts: list[Prompt], max_len: int) -> list[list[int]]:
    """Return the token ids of each non-empty prompt."""
    tokenizer = Tokenizer(root)
    texts = [tokenizer.encode(prompt.text)[:max_len] for prompt in prompts]
    if not any(texts):
        raise CheckpointError(
            "the tokenizer produces no tokens for the prompts", where=str(root), hint="choose other calibration prompts"
        )
    return [text for text in texts if text]
