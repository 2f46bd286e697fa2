# SPDX-License-Identifier: Apache-2.0
"""The draft vocabulary of a head that drafts some of the target's tokens, chosen anew for what the target answers.

A token that is not in it ends every draft, and no training helps: so those of the answers come in, in place of such as
no answer has. How many are drafted stays, and with it the draft's form.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from trtspec.training.texts import Text

MOST_MISSED = 0.005  # of the answers' tokens: fewer are not worth that others can be drafted no more


def chosen_ids(ids: Tensor, texts: Sequence[Text]) -> Tensor:
    """Return as many ids as `ids` [n], ascending: the most frequent of the answers, equals as they are in `ids`.

    They stay as they are where the answers have hardly any other token.
    """
    counts, known = _counted(texts), ids.tolist()
    others = sorted(counts.keys() - set(known))
    if sum(counts[token] for token in others) <= MOST_MISSED * counts.total():
        return ids
    return torch.tensor(most_frequent(len(ids), texts, [*known, *others]), device=ids.device)


def most_frequent(count: int, texts: Sequence[Text], among: Iterable[int]) -> list[int]:
    """Return `count` ids of those `among`, ascending: the answers' most frequent, of equal ones those named first."""
    counts = _counted(texts)
    return sorted(sorted(among, key=lambda token: -counts[token])[:count])


def _counted(texts: Sequence[Text]) -> Counter[int]:
    return Counter(token for text in texts for token in text.answer)


def moved_rows(rows: Tensor, ids: Tensor, chosen: Tensor, target_rows: Tensor) -> Tensor:
    """Return an LM head's `rows` [n, hidden] of `ids`, which ascend, as those of `chosen`.

    What is new begins with the target's row [vocab, hidden], as long as the head's rows are beside the target's.
    """
    known = torch.isin(chosen, ids)
    scale = rows.norm(dim=1).mean() / target_rows[ids].norm(dim=1).mean()
    moved: Tensor = target_rows[chosen] * scale
    moved[known] = rows[torch.searchsorted(ids, chosen[known])]
    return moved


def stored_maps(weights: Path) -> dict[str, Tensor]:
    """Return those of d2t [draft vocab] and t2d [vocab] that a head's safetensors file has."""
    with safe_open(weights, framework="pt") as file:
        return {name: file.get_tensor(name) for name in ("d2t", "t2d") if name in file.keys()}  # noqa: SIM118
