# SPDX-License-Identifier: Apache-2.0
"""Split prompts into training and evaluation: whole documents are assigned to one side, separately for each kind.

Two prompts belong to one document if the file assigns them to it, if they are equal, if one starts with the whole
other, or if they share a long prefix. Spaces are ignored.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from trtspec.core.errors import TrtspecError
from trtspec.engine.prompts.prompt import Prompt
from trtspec.training.texts import HELD_OUT, TRAIN, VALIDATION

ALIKE = 128  # length in characters of a common prefix that joins two prompts to one document
BEGINNING = 32  # minimum length in characters of a prompt that others may extend; shorter ones match by chance
HELD_OUT_SHARE, VALIDATION_SHARE = 0.2, 0.1
LEAST_DOCUMENTS = 4  # per kind: two for training, one for validation, one for evaluation
HINT = "add prompts of this kind, or remove the kind"


def assign_documents(prompts: Sequence[Prompt]) -> list[int]:
    """Return for each prompt the number of its document, which is the index of the document's first prompt."""
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
    """Return a prompt's distinctive text: only user messages, since many prompts share a system message."""
    texts = [str(message["content"]) for message in prompt.messages if message["role"] == "user"]
    return "\n".join(texts) or prompt.text


def _same_names(prompts: Sequence[Prompt]) -> Iterator[tuple[int, int]]:
    named = sorted((prompt.document, place) for place, prompt in enumerate(prompts) if prompt.document)
    for _, group in groupby(named, lambda pair: pair[0]):
        places = [place for _, place in group]
        yield from ((places[0], place) for place in places[1:])


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
    """Return each prompt's side; with `judges` some are held out. Deterministic in prompts and seed.

    TrtspecError for a kind that has too few documents.
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
    """Return a prompt and an evaluation prompt of the same document, or None."""
    documents = assign_documents([*prompts, *judges])
    first = {document: place for place, document in reversed(list(enumerate(documents[: len(prompts)])))}
    for judge, document in zip(judges, documents[len(prompts) :], strict=True):
        if document in first:
            return prompts[first[document]], judge
    return None


def _draw(prompt: Prompt, seed: int) -> bytes:
    """Return a sort key for a random order of documents that does not depend on the other prompts."""
    return hashlib.sha256(f"{seed} {prompt.text}".encode()).digest()


def _too_few(prompts: Sequence[Prompt], documents: Iterable[int], kind: str, count: int) -> TrtspecError:
    documents = list(documents)
    own = [place for place, document in enumerate(documents) if prompts[document].kind == kind]
    message = f"{_named(kind)}: {len(own)} prompts of {count} documents, expected {LEAST_DOCUMENTS} or more"
    if len(own) > count:
        largest = max(own, key=lambda place: documents.count(documents[place]))
        same = [prompts[place].name for place in own if documents[place] == documents[largest]]
        message += f"; {len(same)} are equal or have the same beginning, as {same[0]} and {same[1]}"
    return TrtspecError(message, hint=HINT)


def _named(kind: str) -> str:
    return f"prompts of kind {kind!r}" if kind else "prompts without a kind"
