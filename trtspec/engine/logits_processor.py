# SPDX-License-Identifier: Apache-2.0
"""Logits processing: applies the logit edits of requests, and computes the scores that requests want returned."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from trtspec.engine.generation.request import NO_EDITS, EngineRequest, LogitEdits, Scores
from trtspec.engine.generation.request_state import RunningRequest
from trtspec.kernels.tree import Tree

FORBIDDEN_LOGIT = -1e30  # the logit of a forbidden token; a row of only -inf would not be a valid distribution

Bools = npt.NDArray[np.bool_]


def apply_edits(logits: Tensor, batch: Sequence[RunningRequest], tokens: Tensor, tree: Tree | None) -> Tensor:
    """Return the edited logits; `logits` itself if no request has edits.

    Each node is edited as if the tokens on its path were part of the text. The token after an accepted draft is
    therefore the same as without speculation.

    Args:
        logits: [rows, nodes, vocab], the target's logits after each node.
        batch: the request of each row.
        tokens: [rows, nodes], the last token of each text and the draft after it.
        tree: the shape of the drafts, or None for chains.
    """
    edited = [row for row, running in enumerate(batch) if running.request.edits != NO_EDITS]
    if not edited:
        return logits
    changed = logits.to(torch.promote_types(logits.dtype, torch.float32), copy=True)
    for row in edited:
        _edit_row(changed[row], batch[row], tokens[row], _sees(tree, row, tokens.shape[1]))
    return changed


def _sees(tree: Tree | None, row: int, nodes: int) -> Bools:
    """Return which nodes are on the path to each node [nodes, nodes]; the root is excluded, it is part of the text."""
    sees: Bools = np.tri(nodes, dtype=np.bool_) if tree is None else tree.sees[row % len(tree.sees)].copy()
    sees[:, 0] = False
    return sees


def _edit_row(logits: Tensor, running: RunningRequest, tokens: Tensor, sees: Bools) -> None:
    edits = running.request.edits
    if edits.bias:
        ids = torch.tensor(list(edits.bias), device=logits.device)
        logits[:, ids] += torch.tensor(list(edits.bias.values()), device=logits.device, dtype=logits.dtype)
    if edits.has_penalties:
        _penalize(logits, edits, running.text, len(running.request.prompt_ids), tokens, sees)
    if edits.bad_words or edits.min_tokens or edits.no_repeat_ngram or edits.begin_suppressed:
        for node, forbidden in enumerate(_forbidden(running, tokens.tolist(), sees, logits.shape[-1])):
            logits[node, forbidden] = FORBIDDEN_LOGIT


def _penalize(
    logits: Tensor, edits: LogitEdits, text: Sequence[int], prompt_len: int, tokens: Tensor, sees: Bools
) -> None:
    """Penalize the ids that occur before each node; the other logits stay unchanged.

    numpy counts the occurrences, because even a small torch operation wakes and waits for torch's threads.
    """
    unique_ids, columns = np.unique([*text, *tokens[1:].tolist()], return_inverse=True)
    path = np.zeros((len(sees), len(unique_ids)), np.int64)
    for node, column in enumerate(columns[len(text) :], 1):
        path[:, column] += sees[:, node]
    ignored = min(edits.prompt_ignore_len, prompt_len)
    counted = (
        path + np.bincount(columns[: len(text)], minlength=len(unique_ids)) > 0,
        path + np.bincount(columns[ignored : len(text)], minlength=len(unique_ids)),
    )
    ids, occurs, counts = (torch.from_numpy(numbers).to(logits.device) for numbers in (unique_ids, *counted))
    before, penalty = logits[:, ids], edits.repetition_penalty
    after = torch.where(occurs, torch.where(before < 0, before * penalty, before / penalty), before)
    logits[:, ids] = after - edits.presence_penalty * (counts > 0) - edits.frequency_penalty * counts


def _forbidden(running: RunningRequest, tokens: list[int], sees: Bools, vocab_size: int) -> list[list[int]]:
    """Return the ids that must not follow each node.

    An end id may be outside the vocabulary: benchmark clients send such an id to disable stopping.
    """
    edits, text = running.request.edits, running.text
    last_by_prefix: dict[tuple[int, ...], list[int]] = {}
    for word in edits.bad_words:
        last_by_prefix.setdefault(word[:-1], []).append(word[-1])
    output_len = len(text) - len(running.request.prompt_ids)
    longest = max(map(len, last_by_prefix), default=0)
    ends = [token for token in running.request.end_ids if 0 <= token < vocab_size]
    forbidden = []
    for path in sees:
        drafted = [tokens[node] for node in np.flatnonzero(path)]
        ids = list(ends) if output_len + len(drafted) < edits.min_tokens else []
        if output_len + len(drafted) == 0:
            ids += edits.begin_suppressed
        if edits.no_repeat_ngram:
            ids += _repeating([*text, *drafted], edits.no_repeat_ngram)
        tail = (*text[len(text) - min(longest, len(text)) :], *drafted)
        for prefix, last in last_by_prefix.items():
            if tail[len(tail) - len(prefix) :] == prefix:
                ids = [*ids, *last]
        forbidden.append(ids)
    return forbidden


def _repeating(text: Sequence[int], size: int) -> list[int]:
    """Return the ids that would complete an n-gram of `size` tokens that already occurs in the text."""
    if len(text) < size:
        return []
    ids = np.asarray(text)
    windows = np.lib.stride_tricks.sliding_window_view(ids, size)
    matches = (windows[:, :-1] == ids[len(ids) - size + 1 :]).all(axis=1)
    found: list[int] = np.unique(windows[matches, -1]).tolist()
    return found


def score(request: EngineRequest, logits: Tensor, tokens: Sequence[int]) -> Scores:
    """Return the scores that a request wants for `tokens`, from the target's logits [len(tokens), vocab]."""
    logits = logits.float()
    returned = logits.cpu().numpy() if request.return_logits else None
    if not request.return_log_probs:
        return Scores(returned)
    log_probs = torch.log_softmax(logits, -1)
    chosen = log_probs.gather(1, torch.tensor(tokens, device=logits.device).unsqueeze(1)).squeeze(1)
    top = log_probs.topk(min(request.num_top_log_probs, log_probs.shape[1]))
    return Scores(returned, chosen.cpu().numpy(), top.values.cpu().numpy(), top.indices.int().cpu().numpy())
