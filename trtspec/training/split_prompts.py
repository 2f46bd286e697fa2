# SPDX-License-Identifier: Apache-2.0
"""The step that reads prompts, refuses those that cannot teach or judge, and puts each document on one side."""

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
from trtspec.store.step import Inputs, Progress, Step
from trtspec.training.split import leaked, sides_of
from trtspec.training.texts import HELD_OUT, TEXTS, TRAIN, Text, write_texts

# Marks of chat templates that are one token each to the models that know them.
MARKS = ("<|im_start|>", "<|start_header_id|>", "<|eot_id|>", "<start_of_turn>", "<|assistant|>", "<|user|>")
LEFT_OUT = "left_out.json"
FOREIGN_SHARE = 0.1  # of prompts: some are about templates


@dataclass(frozen=True)
class SplitPrompts(Step):
    """Write `texts.jsonl`: the prompts in tokens, each with its side, and with its answer where the file has one.

    `prompts`, `keep` and `held_out` are a file each, or none. Prompts of more than `max_input_len` tokens are left out;
    how many they are is in `left_out.json`.
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
        """Return what people call it."""
        return "split-prompts"

    def run(self, out: Path, inputs: Inputs, progress: Progress) -> None:
        """Split; raises TrtspecError for prompts that cannot teach or judge."""
        new, kept, judges = (self._load(files) for files in ((self.prompts,), self.keep, self.held_out))
        for others, option in ((kept, "--keep"), (judges, "--held-out")):
            if pair := leaked(new, others):
                raise _leak(self.prompts.paths[0], pair, option)
        with _about(self.prompts):
            texts = self._texts(new, sides_of(new, self.seed, judges=not judges))
        for files in self.held_out:
            with _about(files):
                texts += self._texts(judges, [HELD_OUT] * len(judges))
        for files in self.keep:
            with _about(files):
                texts += self._texts(kept, sides_of(kept, self.seed), kept=True)
        write_texts(out / TEXTS, texts)
        (out / LEFT_OUT).write_text(json.dumps(len(new) + len(kept) + len(judges) - len(texts)))

    def _load(self, files: Sequence[Files]) -> list[Prompt]:
        found = []
        for each in files:
            with each.unchanged(), self.tokenizer.unchanged():
                found += load_prompts(each.paths[0], self.tokenizer.root)
        return found

    def _texts(self, prompts: Sequence[Prompt], sides: Sequence[str], *, kept: bool = False) -> list[Text]:
        tokenizer = Tokenizer(self.tokenizer.root)
        _check_template(prompts, tokenizer)
        _check_answers(prompts)
        found = []
        for prompt, side in zip(prompts, sides, strict=True):
            ids = tuple(tokenizer.encode(prompt.text))
            taken = side == TRAIN and prompt.answer is not None
            answer = tuple(tokenizer.encode(prompt.answer or "", add_special_tokens=False)) if taken else ()
            if 0 < len(ids) <= self.max_input_len:
                found.append(Text(side, prompt.kind, kept, prompt.name, ids, answer, bool(answer)))
        if not found:
            hint = "engine.max_input_len bounds a prompt, and engine.max_seq_len less --max-tokens"
            raise TrtspecError(f"no prompt has between 1 and {self.max_input_len} tokens", hint=hint)
        return found


def left_out_of(split: Path) -> int:
    """Return how many prompts were left out, of what the step wrote."""
    return int(json.loads((split / LEFT_OUT).read_text()))


@contextmanager
def _about(files: Files) -> Iterator[None]:
    """Let what is wrong within the block be about a file, unless it says what it is about."""
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
        message = f"prompts are in the chat template of another model: {mark}, as in prompt {prompt.name}, is no token"
        raise TrtspecError(f"{message} of the target", hint="give messages, which become text by the target's template")


def _check_answers(prompts: Sequence[Prompt]) -> None:
    empty = [prompt.name for prompt in prompts if prompt.answer is not None and not prompt.answer.strip()]
    if empty:
        message = f"{len(empty)} answers are empty, as that to prompt {empty[0]}"
        raise TrtspecError(message, hint="leave the answers out: the target gives its own")


def _leak(path: Path, pair: tuple[Prompt, Prompt], option: str) -> TrtspecError:
    prompt, judge = pair
    message = f"prompt {judge.name} of {option} is prompt {prompt.name} too, or begins like it"
    return TrtspecError(
        message, where=str(path), hint="what judges must not have been trained on: take one of them out"
    )
