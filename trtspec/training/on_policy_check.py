# SPDX-License-Identifier: Apache-2.0
"""Detect whether responses that came with prompts are on-policy, and diagnose those that are not.

If x was sampled from the target's p, the product over tokens of q(x) / p(x) has expectation 1 for any q, so it exceeds
1 / a with probability at most a (Ville 1939). Here q is p to the power 1/2, normalized: it is flatter, so the ratio
grows with every token that is improbable for the target. For greedy responses it is even smaller. Each response is
tested, and the beginnings of all responses together: responses to other prompts differ there, whatever follows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import log

import torch
from torch import Tensor

from trtspec.training.batches import TrainingBatch, in_order
from trtspec.training.teacher import Teacher
from trtspec.training.texts import TrainingText

ERROR = 1e-6  # total probability of rejecting the target's responses
POWER = 0.5
COMPARED = 8  # number of tokens for comparing responses
BEGINNING = 2  # response tokens that depend on the prompt alone
RANDOM_SHARE = 0.8  # of log(vocabulary) nats per token, the expectation for random tokens


@dataclass(frozen=True)
class OffPolicyText:
    """A text with an off-policy response: its nats per token under the target, and the maximum, log(vocabulary)."""

    text: TrainingText
    nats: float
    most: float


@torch.no_grad()
def find_off_policy(texts: Sequence[TrainingText], teacher: Teacher) -> list[OffPolicyText]:
    """Return the texts whose given responses the target would not generate, greedily or by sampling."""
    found = [each for some in in_order(texts, teacher.rows) for each in _tested(some, teacher)]
    if sum(beginning for _, _, beginning in found) > log(2 / ERROR):
        return [foreign for foreign, _, beginning in found if beginning > 0]
    return [foreign for foreign, whole, _ in found if whole > log(2 * len(texts) / ERROR)]


def _tested(texts: Sequence[TrainingText], teacher: Teacher) -> Iterator[tuple[OffPolicyText, float, float]]:
    """Yield each text with the evidence against its response in nats: in total, and at its beginning."""
    moved = [replace(text, prompt=text.prompt[:-1], answer=text.prompt[-1:] + text.answer) for text in texts]
    batch = TrainingBatch.of(moved, teacher.model.device)  # its places include the first token of each response
    logits, _ = teacher.read(batch.tokens, batch.flat(), ())
    ratio, surprise = _evidence(logits, batch.following)
    for row, text in enumerate(texts):
        own = batch.rows == row
        foreign = OffPolicyText(text, float(surprise[own].mean()), log(logits.shape[1]))
        yield foreign, float(ratio[own].sum()), float(ratio[own][:BEGINNING].sum())


def _evidence(logits: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Return log(q / p) and -log p of tokens [n] from logits [n, vocab]."""
    log_probs = torch.log_softmax(logits, -1)
    own = log_probs.gather(1, tokens.unsqueeze(1)).squeeze(1)
    return (POWER - 1) * own - torch.logsumexp(POWER * log_probs, -1), -own


def diagnose(foreign: Sequence[OffPolicyText], own: Sequence[tuple[int, ...]], texts: Sequence[TrainingText]) -> str:
    """Return what is wrong with responses; `own` are the target's to the first prompts, `texts` all given ones."""
    begins = {text.answer[:COMPARED]: text.name for text in texts}
    for each, answer in zip(foreign, own, strict=False):
        given, head = each.text.answer, answer[:COMPARED]
        if len(head) == COMPARED and (_is_shifted(given, answer) or _is_shifted(answer, given)):
            return f"the one to prompt {each.text.name} is the target's, shifted by one token"
        if len(head) == COMPARED and begins.get(head, each.text.name) != each.text.name:
            return f"the one to prompt {begins[head]} answers prompt {each.text.name}: they are shuffled"
    first, nats = foreign[0], sum(each.nats for each in foreign) / len(foreign)
    words = f"they have {nats:.1f} nats per token, for example that to prompt {first.text.name}"
    if nats > RANDOM_SHARE * first.most:
        return f"{words}: not more likely than random tokens"
    return f"{words}: from another model, or for another chat template"


def _is_shifted(early: Sequence[int], late: Sequence[int]) -> bool:
    """Return whether `early` is `late` without its first token, up to the compared length."""
    return tuple(early[:COMPARED]) == tuple(late[1 : 1 + COMPARED])
