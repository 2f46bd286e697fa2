# SPDX-License-Identifier: Apache-2.0
"""The step that measures a model's activations on prompts, for the scales of FP8."""

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
from trtspec.core.files import stamp_of
from trtspec.engine.prompts.load import load_prompts
from trtspec.engine.prompts.prompt import Prompt
from trtspec.store.digest import digest_of
from trtspec.store.files import Files
from trtspec.store.step import Inputs, Progress, Step, notes_of


@dataclass(frozen=True)
class Calibrate(Step):
    """Run prompts through the model layer by layer and write down the largest magnitudes: `activations.json`.

    `source` is the content of config.json and the shards, `tokenizer` that of the tokenizer's files, `prompts` that of
    one file, of which the first `samples` are used, messages by the tokenizer's template, cut to `max_len` tokens.
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

    def run(self, out: Path, inputs: Inputs, progress: Progress) -> None:
        """Calibrate; raises CheckpointError where the source does not add up, TrtspecError where a prompt does not."""
        with self.source.unchanged(), self.tokenizer.unchanged(), self.prompts.unchanged():
            prompts = load_prompts(self.prompts.paths[0], self.source.root)[: self.samples]
            notes = notes_of(out) / "states"
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

    `on_bytes` is told the source bytes done since the last call. With the `notes` of an interrupted calibration of the
    same files it goes on there. Raises CheckpointError where the source, its tokenizer or what is measured does not add
    up.
    """
    from trtspec.engine.calibration.measure import measure  # torch, which planning does without

    model = load_model(root, "auto")
    config = model.config
    texts = _tokenize(root, prompts, min(max_len, _most_positions(config)))
    largest = max(map(max, texts))
    if largest >= config.vocab_size:
        message = f"the tokenizer makes the id {largest}, and the model has {config.vocab_size}"
        raise CheckpointError(message, where=str(root), hint="take tokenizer and weights from the same model")
    plus = {rule.name: rule.plus for rule in model.rules}
    stamp = f"{stamp_of(model.source.files)} {digest_of('trtspec.texts/1', texts)}"
    return Activations(**measure(config, model.matched, texts, plus=plus, on_bytes=on_bytes, notes=notes, stamp=stamp))


def _most_positions(config: ModelConfig) -> int:
    """Return how long texts are measured: LongRoPE's factors of long texts are not those that most texts meet."""
    scaling = config.rope_scaling
    return scaling.original_max_position if scaling and scaling.kind == "longrope" else config.max_positions


def _tokenize(root: Path, prompts: list[Prompt], max_len: int) -> list[list[int]]:
    """Return the ids of each prompt that has some."""
    tokenizer = Tokenizer(root)
    texts = [tokenizer.encode(prompt.text)[:max_len] for prompt in prompts]
    if not any(texts):
        raise CheckpointError(
            "the tokenizer makes no token of the prompts", where=str(root), hint="name other calibration prompts"
        )
    return [text for text in texts if text]
