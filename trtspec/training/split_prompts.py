# SPDX-License-Identifier: Apache-2.0
"""The step that reads prompts, rejects unsuitable ones, and assigns each document to one side."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from trtspec.checkpoints.tokenizer import Tokenizer
from trtspec.core.errors import TrtspecError
from trtspec.engine.prompts.load import load_prompts
from trtspec.engine.prompts.prompt import Prompt
from trtspec.store.files import Files
from trtspec.store.step import Inputs, Step, StepProgress
from trtspec.training.split import assign_sides, leaked
from trtspec.training.texts import HELD_OUT, TEXTS, TRAIN, TrainingText, write_texts

# Marks of chat templates that are single tokens in the models that use them.
MARKS = ("<|im_start|>", "<|start_header_id|>", "<|eot_id|>", "<start_of_turn>", "<|assistant|>", "<|user|>")
LEFT_OUT = "left_out.json"
FOREIGN_SHARE = 0.1  # of prompts; some may be about templates


@dataclass(frozen=True)
class SplitPrompts(Step):
    """Write `texts.jsonl`: the tokenized prompts with their sides, and their responses if the file has any.

    `prompts`, `keep` and `held_out` are one file each, or none. Prompts of more than `max_input_len` tokens are
    skipped and counted in `left_out.json`.
    """

    VERSION: ClassVar[int] = 2

    tokenizer: Files
    prompts: Files
    keep: tuple[Files, ...]
    held_out: tuple[Files, ...]
    max_input_len: int
    seed: int

    @property
    def name(self) -> str:
        """Return the step's name."""
        return "split-prompts"

    def run(self, out: Path, inputs: Inputs, progress: StepProgress) -> None:
        """Split; TrtspecError for prompts unsuitable for training or evaluation."""
        new, kept, judges = (self._load(files) for files in ((self.prompts,), self.keep, self.held_out))
        for others, option in ((kept, "--regression-prompts"), (judges, "--held-out")):
            if pair := leaked(new, others):
                raise _leak(self.prompts.paths[0], pair, option)
        with _with_location(self.prompts):
            texts = self._texts(new, assign_sides(new, self.seed, judges=not judges))
        for files in self.held_out:
            with _with_location(files):
                texts += self._texts(judges, [HELD_OUT] * len(judges))
        for files in self.keep:
            with _with_location(files):
                texts += self._texts(kept, assign_sides(kept, self.seed), kept=True)
        write_texts(out / TEXTS, texts)
        (out / LEFT_OUT).write_text(json.dumps(len(new) + len(kept) + len(judges) - len(texts)))

    def _load(self, files: Sequence[Files]) -> list[Prompt]:
        found = []
        for each in files:
            with each.unchanged(), self.tokenizer.unchanged():
                found += load_prompts(each.paths[0], self.tokenizer.root)
        return found

    def _texts(self, prompts: Sequence[Prompt], sides: Sequence[str], *, kept: bool = False) -> list[TrainingText]:
        tokenizer = Tokenizer(self.tokenizer.root)
        _check_template(prompts, tokenizer)
        _check_answers(prompts)
        found = []
        for prompt, side in zip(prompts, sides, strict=True):
            ids = tuple(tokenizer.encode(prompt.text))
            taken = side == TRAIN and prompt.answer is not None
            answer = tuple(tokenizer.encode(prompt.answer or "", add_special_tokens=False)) if taken else ()
            if 0 < len(ids) <= self.max_input_len:
                found.append(TrainingText(side, prompt.kind, kept, prompt.name, ids, answer, bool(answer)))
        if not found:
            hint = "a prompt is limited by engine.max_input_len, and by engine.max_seq_len minus --max-tokens"
            raise TrtspecError(f"no prompt has between 1 and {self.max_input_len} tokens", hint=hint)
        return found


def read_num_skipped(split: Path) -> int:
    """Return the number of skipped prompts from the step's output."""
    return int(json.loads((split / LEFT_OUT).read_text()))


@contextmanager
def _with_location(files: Files) -> Iterator[None]:
    """Add the file to errors raised within the block that lack a location."""
    try:
        yield
    except TrtspecError as error:
        if error.where:
            raise
        raise TrtspecError(error.message, where=str(files.paths[0]), hint=error.hint) from None


def _check_template(prompts: Sequence[Prompt], tokenizer: Tokenizer) -> None:
    strange = [mark for mark in MARKS if len(tokenizer.encode(mark, add_special_tokens=False)) > 1]
    found = [(mark, prompt) for prompt in prompts for mark in strange if mark in prompt.text]
    if len({prompt.name for _, prompt in found}) > FOREIGN_SHARE * len(prompts):
        mark, prompt = found[0]
        message = f"prompts use the chat template of another model: {mark}, as in prompt {prompt.name}, is not a token"
        raise TrtspecError(f"{message} of the target", hint="use messages, to which the target's template is applied")


def _check_answers(prompts: Sequence[Prompt]) -> None:
    empty = [prompt.name for prompt in prompts if prompt.answer is not None and not prompt.answer.strip()]
    if empty:
        message = f"{len(empty)} answers are empty, as that to prompt {empty[0]}"
        raise TrtspecError(message, hint="remove the answers; the target generates them")


def _leak(path: Path, pair: tuple[Prompt, Prompt], option: str) -> TrtspecError:
    prompt, judge = pair
    message = f"prompt {judge.name} of {option} equals prompt {prompt.name} or has the same beginning"
    return TrtspecError(message, where=str(path), hint="evaluation prompts must not be trained on: remove one of them")
