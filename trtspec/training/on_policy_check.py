# SPDX-License-Identifier: Apache-2.0
"""Whether answers that came with prompts are the target's own, and what they are where they are not.

If x was sampled from the target's p, the product over tokens of q(x) / p(x) has expectation 1 for whatever q, so that
it exceeds 1 / a with probability a at most (Ville 1939). Here q is p to the power 1/2, normalized: flatter, so the
ratio grows with every token that surprises the target. A greedy answer has a smaller one still. Each answer is tested
so, and the beginnings of all of them together: what answers something else differs there, and may go on as it likes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import log

import torch
from torch import Tensor

from trtspec.training.batches import Batch, in_order
from trtspec.training.teacher import Teacher
from trtspec.training.texts import Text

ERROR = 1e-6  # the probability that answers of the target are refused, in all
POWER = 0.5
COMPARED = 8  # tokens with which an answer is told from others
BEGINNING = 2  # tokens of an answer that the prompt alone decides
RANDOM_SHARE = 0.8  # of log(vocabulary) nats a token, which is what tokens drawn by chance take


@dataclass(frozen=True)
class Foreign:
    """A text whose answer the target would not give: nats a token that it is to the target, of so many at most."""

    text: Text
    nats: float
    most: float


@torch.no_grad()
def foreign_answers(texts: Sequence[Text], teacher: Teacher) -> list[Foreign]:
    """Return the texts whose given answers are not the target's, greedy or sampled."""
    found = [each for some in in_order(texts, teacher.rows) for each in _tested(some, teacher)]
    if sum(beginning for _, _, beginning in found) > log(2 / ERROR):
        return [foreign for foreign, _, beginning in found if beginning > 0]
    return [foreign for foreign, whole, _ in found if whole > log(2 * len(texts) / ERROR)]


def _tested(texts: Sequence[Text], teacher: Teacher) -> Iterator[tuple[Foreign, float, float]]:
    """Yield each text with what speaks against its answer, in nats: in all, and at its beginning."""
    moved = [replace(text, prompt=text.prompt[:-1], answer=text.prompt[-1:] + text.answer) for text in texts]
    batch = Batch.of(moved, teacher.model.device)  # whose places are those of answers without their first token
    logits, _ = teacher.read(batch.tokens, batch.flat(), ())
    ratio, surprise = _evidence(logits, batch.following)
    for row, text in enumerate(texts):
        own = batch.rows == row
        foreign = Foreign(text, float(surprise[own].mean()), log(logits.shape[1]))
        yield foreign, float(ratio[own].sum()), float(ratio[own][:BEGINNING].sum())


def _evidence(logits: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Return log(q / p) and -log p of tokens [n] by logits [n, vocab]."""
    log_probs = torch.log_softmax(logits, -1)
    said = log_probs.gather(1, tokens.unsqueeze(1)).squeeze(1)
    return (POWER - 1) * said - torch.logsumexp(POWER * log_probs, -1), -said


def diagnose(foreign: Sequence[Foreign], own: Sequence[tuple[int, ...]], texts: Sequence[Text]) -> str:
    """Return what is wrong with answers: `own` are the target's to the first of the prompts, `texts` all that came."""
    begins = {text.answer[:COMPARED]: text.name for text in texts}
    for each, answer in zip(foreign, own, strict=False):
        given, head = each.text.answer, answer[:COMPARED]
        if len(head) == COMPARED and (_is_shifted(given, answer) or _is_shifted(answer, given)):
            return f"that to prompt {each.text.name} is the target's own, shifted by a token"
        if len(head) == COMPARED and begins.get(head, each.text.name) != each.text.name:
            return f"that to prompt {begins[head]} answers prompt {each.text.name}: they are shuffled"
    first, nats = foreign[0], sum(each.nats for each in foreign) / len(foreign)
    words = f"they take {nats:.1f} nats a token, as that to prompt {first.text.name}"
    if nats > RANDOM_SHARE * first.most:
        return f"{words}: no more likely than tokens drawn by chance"
    return f"{words}: another model's, or for another chat template"


def _is_shifted(early: Sequence[int], late: Sequence[int]) -> bool:
    """Tell whether `early` is `late` without its first token, as far as is compared."""
    return tuple(early[:COMPARED]) == tuple(late[1 : 1 + COMPARED])
