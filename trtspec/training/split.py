# SPDX-License-Identifier: Apache-2.0
"""Which prompts are trained on and which judge: whole documents fall on one side, for each kind by itself.

Two prompts are of one document where the file says so, where they are equal, where one begins with all of the other,
or where they begin alike for long. Spaces do not count.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from trtspec.core.errors import TrtspecError
from trtspec.engine.prompts.prompt import Prompt
from trtspec.training.texts import HELD_OUT, TRAIN, VALIDATION

ALIKE = 128  # characters with which two prompts of one document begin
BEGINNING = 32  # characters of a prompt that others may begin with by chance
HELD_OUT_SHARE, VALIDATION_SHARE = 0.2, 0.1
LEAST_DOCUMENTS = 4  # of a kind: two to train on, one to stop by, one to judge by
HINT = "give more prompts of this kind, or leave it out"


def documents_of(prompts: Sequence[Prompt]) -> list[int]:
    """Return for each prompt the number of its document: equal for prompts of one, the first prompt's own."""
    texts = [" ".join(_asked(prompt).split()) for prompt in prompts]
    parents = list(range(len(prompts)))

    def find(place: int) -> int:
        while parents[place] != place:
            parents[place] = parents[parents[place]]
            place = parents[place]
        return place

    for one, other in (*_same_names(prompts), *_alike(texts)):
        first, second = sorted((find(one), find(other)))
        parents[second] = first
    return [find(place) for place in range(len(prompts))]


def _asked(prompt: Prompt) -> str:
    """Return what tells a prompt from others: of messages what users say, since a system's are the same for many."""
    said = [str(message["content"]) for message in prompt.messages if message["role"] == "user"]
    return "\n".join(said) or prompt.text


def _same_names(prompts: Sequence[Prompt]) -> Iterator[tuple[int, int]]:
    named = sorted((prompt.document, place) for place, prompt in enumerate(prompts) if prompt.document)
    for _, group in groupby(named, lambda pair: pair[0]):
        places = [place for _, place in group]
        yield from ((places[0], place) for place in places[1:])


def _alike(texts: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Yield pairs that join what is equal, begins with a whole other text, or begins alike."""
    heads: dict[str, int] = {}
    beginnings: list[int] = []  # texts that the one before begins with, each with those before it
    for place in sorted(range(len(texts)), key=lambda place: texts[place]):
        text = texts[place]
        while beginnings and not text.startswith(texts[beginnings[-1]]):
            beginnings.pop()
        if beginnings and (text == texts[beginnings[-1]] or len(texts[beginnings[-1]]) >= BEGINNING):
            yield beginnings[-1], place
        beginnings.append(place)
        if len(text) >= ALIKE:
            yield heads.setdefault(text[:ALIKE], place), place


def sides_of(prompts: Sequence[Prompt], seed: int, *, judges: bool = True) -> list[str]:
    """Return each prompt's side; with `judges` some are held out. Equal prompts and seeds give equal sides.

    Raises TrtspecError for a kind that has too few documents.
    """
    documents = documents_of(prompts)
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
    """Return a prompt and one to judge by that are of one document; None where there are none."""
    documents = documents_of([*prompts, *judges])
    first = {document: place for place, document in reversed(list(enumerate(documents[: len(prompts)])))}
    for judge, document in zip(judges, documents[len(prompts) :], strict=True):
        if document in first:
            return prompts[first[document]], judge
    return None


def _draw(prompt: Prompt, seed: int) -> bytes:
    """Return a number by which documents are in a random order that does not depend on the other prompts."""
    return hashlib.sha256(f"{seed} {prompt.text}".encode()).digest()


def _too_few(prompts: Sequence[Prompt], documents: Iterable[int], kind: str, count: int) -> TrtspecError:
    documents = list(documents)
    own = [place for place, document in enumerate(documents) if prompts[document].kind == kind]
    message = f"{_named(kind)}: {len(own)} prompts of {count} documents, expected {LEAST_DOCUMENTS} or more"
    if len(own) > count:
        largest = max(own, key=lambda place: documents.count(documents[place]))
        same = [prompts[place].name for place in own if documents[place] == documents[largest]]
        message += f"; {len(same)} are equal or begin alike, as {same[0]} and {same[1]}"
    return TrtspecError(message, hint=HINT)


def _named(kind: str) -> str:
    return f"prompts of kind {kind!r}" if kind else "prompts without a kind"
