# SPDX-License-Identifier: Apache-2.0
"""Padded batches of texts in a seeded order, the target's outputs for them, and detection of off-policy responses.

The target is the teacher: its logits and hidden states are cached if they fit into memory. Cached texts are computed in
batches that depend on their list alone, because the last bit of a sum depends on the batch. Therefore the result does
not depend on when a training was interrupted.

Responses that came with prompts may be off-policy. If x was sampled from the target's p, the product over tokens of
q(x) / p(x) has expectation 1 for any q, so it exceeds 1 / a with probability at most a (Ville 1939). Here q is p to the
power 1/2, normalized: it is flatter, so the ratio grows with every token that is improbable for the target. For greedy
responses it is even smaller. Each response is tested, and so are the beginnings of all responses together: responses to
other prompts differ at the beginning, whatever follows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import log
from pathlib import Path
from random import Random

import torch
from torch import Tensor, cat, split_with_sizes
from torch.nn.utils.rnn import pad_sequence

from trtspec.checkpoints.trtllm import load_checkpoint
from trtspec.engine.device import choose_device, compute_dtype, pad_rows
from trtspec.engine.model.decoder import Decoder
from trtspec.training.texts import TrainingText, pool

BATCH_TOKENS, MOST_ROWS = 2048, 32
STEP_ROWS = 8  # rows per optimizer step: more steps help more than larger ones


class TrainingBatch:
    """Texts [rows, width], padded on the right, and the places of the target's predictions for drafted tokens.

    A place is a token after which a draft is evaluated: the next token belongs to a response and is not its first,
    which comes from the prefill. `rows` and `positions` [n] locate the places. `depths` number them from 0 in each
    response, `following` are the tokens after them, and `counts` is their number in each row. `grid` [rows, maximum per
    row] has their positions row by row, padded; `is_valid` selects the places, in the order of `positions`. Responses
    have at least two tokens.
    """

    def __init__(self, texts: Sequence[TrainingText], device: torch.device) -> None:
        self.texts = tuple(texts)
        self.tokens = pad_rows([text.tokens for text in texts], device)
        spans = [range(len(text.prompt), len(text.tokens) - 1) for text in texts]
        self.counts = [len(span) for span in spans]
        self.rows = torch.tensor([row for row, span in enumerate(spans) for _ in span], device=device)
        self.positions = torch.tensor([position for span in spans for position in span], device=device)
        self.depths = torch.tensor([depth for count in self.counts for depth in range(count)], device=device)
        self.following = self.tokens[self.rows, self.positions + 1]
        numbers = torch.arange(max(self.counts), device=device)
        first = torch.tensor([span.start for span in spans], device=device).unsqueeze(1)
        self.grid = (first + numbers).clamp(max=self.tokens.shape[1] - 1)
        self.is_valid = numbers < torch.tensor(self.counts, device=device).unsqueeze(1)

    def tokens_after(self, step: int) -> Tensor:
        """Return the token [n] that is `step` positions after each place; undefined beyond the text."""
        return self.tokens[self.rows, (self.positions + step).clamp(max=self.tokens.shape[1] - 1)]

    def flat(self, back: int = 0) -> Tensor:
        """Return the flat indices, into rows * width, of the positions `back` before the places."""
        return self.rows * self.tokens.shape[1] + self.positions - back


def training_batches(texts: Sequence[TrainingText], rows: int, seed: int, first: int) -> Iterator[list[TrainingText]]:
    """Yield `rows` texts per step, endlessly from step `first`; each epoch uses each text once in a new order.

    Regression texts are repeated as in `pool`.
    """
    taken = pool(texts)
    rows = min(rows, len(taken))
    steps = len(taken) // rows
    while True:
        epoch, start = divmod(first, steps)
        order = list(range(len(taken)))
        Random(f"{seed} {epoch}").shuffle(order)
        for step in range(start, steps):
            yield [taken[place] for place in order[step * rows : (step + 1) * rows]]
        first = (epoch + 1) * steps


def in_order(texts: Sequence[TrainingText], rows: int) -> Iterator[list[TrainingText]]:
    """Yield all texts once, in batches of `rows`."""
    for start in range(0, len(texts), rows):
        yield list(texts[start : start + rows])


MOST_BYTES = 1 << 30
ITEM_BYTES = 4

TargetOutput = tuple[Tensor, Tensor]  # logits and features


class Teacher:
    """The target, a converted checkpoint in the torch engine, with a KV cache for one batch of the given texts."""

    def __init__(self, root: Path, texts: Sequence[TrainingText]) -> None:
        device, checkpoint = choose_device("auto"), load_checkpoint(root)
        longest = max(len(text.tokens) for text in texts)
        dtype = compute_dtype("auto", device, checkpoint)
        self.rows = max(1, min(MOST_ROWS, BATCH_TOKENS // longest, len(texts)))
        self.model = Decoder(checkpoint, self.rows, longest, device, dtype)

    @torch.no_grad()
    def read(self, tokens: Tensor, at: Tensor, aux_layers: Sequence[int]) -> TargetOutput:
        """Return float32 logits [len(at), vocab] and features [rows, width, aux_layers * hidden] for `tokens`.

        `at` are flat indices into rows * width. Without `aux_layers` the last dimension of the features is 0.
        """
        rows, width = tokens.shape
        window = self.model.windows.chain([0] * rows, width)
        logits, features = self.model.forward_with_features(tokens, window, aux_layers, at)
        features = logits.new_empty(rows * width, 0) if features is None else features
        return logits.float(), features.float().view(rows, width, features.shape[1])


class TargetOutputs:
    """The target's logits and hidden states at `aux_layers` for batches of `texts`, cached if they fit in 1 GiB."""

    def __init__(self, teacher: Teacher, aux_layers: Sequence[int], texts: Sequence[TrainingText]) -> None:
        self.teacher, self.aux_layers = teacher, aux_layers
        self._texts = list(dict.fromkeys(texts))
        self._numbers = {text: number for number, text in enumerate(self._texts)}
        self._cached: dict[TrainingText, TargetOutput] = {}
        config = teacher.model.config
        logits = sum(len(text.answer) for text in self._texts) * config.vocab_size
        features = sum(len(text.tokens) for text in self._texts) * config.hidden_size * len(aux_layers)
        self._fits = ITEM_BYTES * (logits + features) <= MOST_BYTES

    def of(self, batch: TrainingBatch) -> TargetOutput:
        """Return the target's logits [places, vocab] and features [rows, width, aux_layers * hidden] for a batch."""
        if not self._fits:
            return self.teacher.read(batch.tokens, batch.flat(), self.aux_layers)
        for text in batch.texts:
            if text not in self._cached:
                self._compute(self._numbers[text] // self.teacher.rows * self.teacher.rows)
        logits, features = zip(*(self._cached[text] for text in batch.texts), strict=True)
        return cat(logits), pad_sequence(list(features), batch_first=True)

    def _compute(self, first: int) -> None:
        """Compute and cache the outputs of the batch of texts that starts at `first`."""
        batch = TrainingBatch(self._texts[first : first + self.teacher.rows], self.teacher.model.device)
        logits, features = self.teacher.read(batch.tokens, batch.flat(), self.aux_layers)
        for row, (text, own) in enumerate(zip(batch.texts, split_with_sizes(logits, batch.counts), strict=True)):
            self._cached[text] = own, features[row, : len(text.tokens)].clone()


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
    batch = TrainingBatch(moved, teacher.model.device)  # its places include the first token of each response
    logits, _ = teacher.read(batch.tokens, batch.flat(), ())
    log_probs = torch.log_softmax(logits, -1)
    likely = log_probs.gather(1, batch.following.unsqueeze(1)).squeeze(1)
    ratio = (POWER - 1) * likely - torch.logsumexp(POWER * log_probs, -1)  # log(q / p)
    for row, text in enumerate(texts):
        own = batch.rows == row
        foreign = OffPolicyText(text, float(-likely[own].mean()), log(logits.shape[1]))
        yield foreign, float(ratio[own].sum()), float(ratio[own][:BEGINNING].sum())


def diagnose(foreign: Sequence[OffPolicyText], own: Sequence[tuple[int, ...]], texts: Sequence[TrainingText]) -> str:
    """Return the probable cause of off-policy responses, as a part of an error message.

    `own` are the target's responses to the first prompts of `foreign`, and `texts` all texts with given responses.
    """
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
