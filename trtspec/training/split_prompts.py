# SPDX-License-Identifier: Apache-2.0
"""Step that reads prompts, rejects unsuitable ones, and splits them into training and evaluation.

Whole documents are assigned to one side, separately for each kind. Two prompts belong to one document if the file
assigns them to it, if they are equal, if one starts with the whole other, or if they share a long prefix. Spaces are
ignored.
"""

from __future__ import annotations

import hashlib
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
from trtspec.training.texts import HELD_OUT, TEXTS, TRAIN, VALIDATION, TrainingText, write_texts

ALIKE = 128  # length in characters of a common prefix that joins two prompts to one document
BEGINNING = 32  # minimum length in characters of a prompt that others may extend; shorter ones match by chance
HELD_OUT_SHARE, VALIDATION_SHARE = 0.2, 0.1
LEAST_DOCUMENTS = 4  # per kind: two for training, one for validation, one for evaluation
HINT = "add prompts of this kind, or remove the kind"
# Marks of chat templates that are single tokens in the models that use them.
MARKS = ("<|im_start|>", "<|start_header_id|>", "<|eot_id|>", "<start_of_turn>", "<|assistant|>", "<|user|>")
LEFT_OUT = "left_out.json"
FOREIGN_SHARE = 0.1  # of prompts; some may be about templates


def assign_documents(prompts: Sequence[Prompt]) -> list[int]:
    """Return the document number of each prompt, which is the index of the document's first prompt."""
    texts = [" ".join(_user_text(prompt).split()) for prompt in prompts]
    parents = list(range(len(prompts)))

    def find(place: int) -> int:
        while parents[place] != place:
            parents[place] = parents[parents[place]]
            place = parents[place]
        return place

    for one, other in (*_same_names(prompts), *_similar_pairs(texts)):
        first, second = sorted((find(one), find(other)))
        parents[second] = first
    return [find(place) for place in range(len(prompts))]


def _user_text(prompt: Prompt) -> str:
    """Return a prompt's distinctive text: only user messages, because many prompts share a system message."""
    texts = [str(message["content"]) for message in prompt.messages if message["role"] == "user"]
    return "\n".join(texts) or prompt.text


def _same_names(prompts: Sequence[Prompt]) -> Iterator[tuple[int, int]]:
    first: dict[str, int] = {}
    for place, prompt in enumerate(prompts):
        if prompt.document:
            yield first.setdefault(prompt.document, place), place


def _similar_pairs(texts: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Yield pairs of texts that are equal, extend one another, or share a long prefix."""
    heads: dict[str, int] = {}
    beginnings: list[int] = []  # stack of texts that are prefixes of the current one
    for place in sorted(range(len(texts)), key=lambda place: texts[place]):
        text = texts[place]
        while beginnings and not text.startswith(texts[beginnings[-1]]):
            beginnings.pop()
        if beginnings and (text == texts[beginnings[-1]] or len(texts[beginnings[-1]]) >= BEGINNING):
            yield beginnings[-1], place
        beginnings.append(place)
        if len(text) >= ALIKE:
            yield heads.setdefault(text[:ALIKE], place), place


def assign_sides(prompts: Sequence[Prompt], seed: int, *, judges: bool = True) -> list[str]:
    """Assign each prompt to training, validation or, with `judges`, held-out; deterministic in prompts and seed.

    Raises TrtspecError for a kind that has too few documents.
    """
    documents = assign_documents(prompts)
    kinds = {document: prompts[document].kind for document in documents}
    sides: dict[int, str] = {}
    for kind in sorted(set(kinds.values())):
        own = sorted(
            (document for document in kinds if kinds[document] == kind), key=lambda each: _draw(prompts[each], seed)
        )
        if len(own) < LEAST_DOCUMENTS:
            raise _too_few(prompts, documents, kind, len(own))
        held_out = max(1, round(len(own) * HELD_OUT_SHARE)) if judges else 0
        validation = held_out + max(1, round(len(own) * VALIDATION_SHARE))
        sides |= {
            document: HELD_OUT if place < held_out else VALIDATION if place < validation else TRAIN
            for place, document in enumerate(own)
        }
    return [sides[document] for document in documents]


def leaked(prompts: Sequence[Prompt], judges: Sequence[Prompt]) -> tuple[Prompt, Prompt] | None:
    """Return the first pair of a training and an evaluation prompt from the same document, or None."""
    documents = assign_documents([*prompts, *judges])
    first = {document: place for place, document in reversed(list(enumerate(documents[: len(prompts)])))}
    for judge, document in zip(judges, documents[len(prompts) :], strict=True):
        if document in first:
            return prompts[first[document]], judge
    return None


def _draw(prompt: Prompt, seed: int) -> bytes:
    """Return a sort key for a random order of documents that does not depend on the other prompts."""
    return hashlib.sha256(f"{seed} {prompt.text}".encode()).digest()


def _too_few(prompts: Sequence[Prompt], documents: Sequence[int], kind: str, count: int) -> TrtspecError:
    own = [place for place, document in enumerate(documents) if prompts[document].kind == kind]
    of_kind = f"prompts of kind {kind!r}" if kind else "prompts without a kind"
    message = f"{of_kind}: {len(own)} prompts of {count} documents, expected {LEAST_DOCUMENTS} or more"
    if len(own) > count:
        largest = max(own, key=lambda place: documents.count(documents[place]))
        same = [prompts[place].name for place in own if documents[place] == documents[largest]]
        message += f"; {len(same)} are equal or have the same beginning, as {same[0]} and {same[1]}"
    return TrtspecError(message, hint=HINT)


@dataclass(frozen=True)
class SplitPrompts(Step):
    """Step that writes `texts.jsonl`: the tokenized prompts with their sides, and responses from the files if any.

    `prompts` is a file; `keep` (regression prompts) and `held_out` are one file each, or none. Prompts of more than
    `max_input_len` tokens are skipped and counted in `left_out.json`.
    """

    VERSION: ClassVar[int] = 2

    tokenizer: Files
    prompts: Files
    keep: tuple[Files, ...]
    held_out: tuple[Files, ...]
    max_input_len: int
    seed: int

    def run(self, out: Path, inputs: Inputs, progress: StepProgress) -> None:
        """Split the prompts; raise TrtspecError if they are unsuitable for training or evaluation."""
        new, kept, judges = (self._load(files) for files in ((self.prompts,), self.keep, self.held_out))
        for others, option in ((kept, "--regression-prompts"), (judges, "--held-out")):
            if pair := leaked(new, others):
                prompt, judge = pair
                message = f"prompt {judge.name} of {option} equals prompt {prompt.name} or has the same beginning"
                hint = "evaluation prompts must not be trained on: remove one of them"
                raise TrtspecError(message, where=str(self.prompts.paths[0]), hint=hint)
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
    """Load the number of skipped prompts from the output directory of `SplitPrompts`."""
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
