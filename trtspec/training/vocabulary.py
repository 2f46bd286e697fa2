# SPDX-License-Identifier: Apache-2.0
"""The draft vocabulary of a head that drafts some of the target's tokens, chosen anew for what the target answers.

A token that is not in it ends every draft, and no training helps: so those of the answers come in, in place of such as
no answer has. How many are drafted stays, and with it the draft's form.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

from trtspec.training.texts import Text


def chosen_ids(ids: Tensor, texts: Sequence[Text]) -> Tensor:
    """Return as many ids as `ids` [n], ascending: the most frequent of the answers, equals as they are in `ids`."""
    counts = Counter(token for text in texts for token in text.answer)
    candidates = sorted(set(ids.tolist()) | counts.keys())
    known = set(ids.tolist())
    ranked = sorted(candidates, key=lambda token: (-counts[token], token not in known))
    return torch.tensor(sorted(ranked[: len(ids)]), device=ids.device)


def moved_rows(rows: Tensor, ids: Tensor, chosen: Tensor, target_rows: Tensor) -> Tensor:
    """Return an LM head's `rows` [n, hidden] of `ids`, which ascend, as those of `chosen`.

    What is new begins with the target's row [vocab, hidden], as long as the head's rows are beside the target's.
    """
    known = torch.isin(chosen, ids)
    scale = rows.norm(dim=1).mean() / target_rows[ids].norm(dim=1).mean()
    moved = target_rows[chosen] * scale
    moved[known] = rows[torch.searchsorted(ids, chosen[known])]
    return moved
