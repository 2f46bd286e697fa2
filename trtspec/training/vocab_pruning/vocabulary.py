# SPDX-License-Identifier: Apache-2.0
"""Choose the draft vocabulary of a head that drafts some of the target's tokens, from the target's responses.

A token outside the vocabulary ends every draft, and training cannot fix that. Therefore frequent tokens of the
responses replace tokens that no response contains. The size, and with it the draft's shape, stays the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from trtspec.training.texts import TrainingText

MOST_MISSED = 0.005  # share of the responses' tokens below which the vocabulary is not changed


def chosen_ids(ids: Tensor, texts: Sequence[TrainingText]) -> Tensor:
    """Return as many ids as `ids` [n], ascending: the most frequent in the responses, ties in the order of `ids`.

    The ids are unchanged if the responses contain hardly any other token.
    """
    counts, known = _counted(texts), ids.tolist()
    others = sorted(counts.keys() - set(known))
    if sum(counts[token] for token in others) <= MOST_MISSED * counts.total():
        return ids
    return torch.tensor(most_frequent(len(ids), texts, [*known, *others]), device=ids.device)


def most_frequent(count: int, texts: Sequence[TrainingText], among: Iterable[int]) -> list[int]:
    """Return `count` ids of those `among`, ascending: the most frequent in the responses, ties by order."""
    counts = _counted(texts)
    return sorted(sorted(among, key=lambda token: -counts[token])[:count])


def _counted(texts: Sequence[TrainingText]) -> Counter[int]:
    return Counter(token for text in texts for token in text.answer)


def moved_rows(rows: Tensor, ids: Tensor, chosen: Tensor, target_rows: Tensor) -> Tensor:
    """Return an LM head's `rows` [n, hidden] of `ids`, which ascend, rearranged for `chosen`.

    New rows are copied from the target's [vocab, hidden], scaled to the average norm of the head's rows.
    """
    known = torch.isin(chosen, ids)
    scale = rows.norm(dim=1).mean() / target_rows[ids].norm(dim=1).mean()
    moved: Tensor = target_rows[chosen] * scale
    moved[known] = rows[torch.searchsorted(ids, chosen[known])]
    return moved


def stored_maps(weights: Path) -> dict[str, Tensor]:
    """Return d2t [draft vocab] and t2d [vocab] of a head's safetensors file, if present."""
    with safe_open(weights, framework="pt") as file:
        return {name: file.get_tensor(name) for name in ("d2t", "t2d") if name in file.keys()}  # noqa: SIM118
