# SPDX-License-Identifier: Apache-2.0
"""The draft vocabulary of a head that drafts some of the target's tokens: its choice, and a net pruned to it.

A token outside the vocabulary ends every draft, and training cannot fix that. Therefore training replaces tokens that
no response of the target contains by frequent tokens of the responses; the size, and with it the draft's shape, stays
the same. A pruned net has fewer rows, the mapping to the target's ids, and a smaller size in config.json.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from trtspec.checkpoints.source import Source, load_source
from trtspec.checkpoints.source_model import SourceModel
from trtspec.checkpoints.trtllm import LM_HEAD
from trtspec.checkpoints.writer import Part
from trtspec.core.errors import CheckpointError
from trtspec.engine.device import TORCH_DTYPES, map_tensor
from trtspec.methods.base import VocabularyNames
from trtspec.methods.draft_head import drafted_ids
from trtspec.training.tensors import converted_view, make_part
from trtspec.training.texts import TrainingText

MOST_MISSED = 0.005  # share of the responses' tokens below which the vocabulary is not changed
VOCAB = "draft_vocab_size"


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


class ReducedNet:
    """The net in `root` for a target; `find_names` is its method's `vocabulary_names`."""

    def __init__(self, root: Path, target: SourceModel, find_names: Callable[[Source], VocabularyNames]) -> None:
        self._source, self._target = load_source(root), target
        self._names = find_names(self._source)
        stored = self._source.tensors.get(f"{self._names.prefix}d2t")
        self.drafted: Sequence[int] = drafted_ids(stored) if stored else range(target.config.vocab_size)

    def config(self, ids: Sequence[int]) -> dict[str, Any]:
        """Return config.json with the draft vocabulary size in every section that has it."""
        config, size = self._source.config, {VOCAB: len(ids)}
        sections = {key: value | size for key, value in config.items() if isinstance(value, dict) and VOCAB in value}
        return config | size | sections

    def parts(self, ids: Sequence[int]) -> list[Part]:
        """Return all tensors; `ids` are the remaining draft tokens, ascending."""
        chosen, prefix = torch.tensor(ids), self._names.prefix
        rows = torch.searchsorted(torch.tensor(self.drafted), chosen)
        marked = torch.zeros(self._target.config.vocab_size, dtype=torch.bool)
        made = {
            f"{prefix}lm_head.weight": self._lm_head()[rows],
            f"{prefix}d2t": chosen - torch.arange(len(ids)),
            f"{prefix}t2d": marked.index_fill(0, chosen, True),
            **{name: self._read(name)[rows] for name in self._names.rows},
        }
        kept = [Part.copy(name, each) for name, each in self._source.tensors.items() if name not in made]
        return [*kept, *(make_part(name, each, self._source.main_dtype) for name, each in made.items())]

    def _lm_head(self) -> Tensor:
        """Return the net's LM head, or the target's if the net lacks one."""
        if (stored := f"{self._names.prefix}{self._names.lm_head}") in self._source.tensors:
            return self._read(stored)
        rules = [rule for rule in self._target.rules if rule.target == LM_HEAD]
        return converted_view(self._target.source, rules)[LM_HEAD]

    def _read(self, name: str) -> Tensor:
        tensor = self._source.tensors[name]
        if tensor.dtype not in TORCH_DTYPES:
            raise CheckpointError(
                f"{name} is {tensor.dtype}, whose rows cannot be selected",
                where=str(self._source.root),
                hint="use the draft from before quantization",
            )
        return map_tensor(tensor)
