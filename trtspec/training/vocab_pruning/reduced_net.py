# SPDX-License-Identifier: Apache-2.0
"""A net with a pruned draft vocabulary: the remaining rows, the mapping to the target's ids, and config.json."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trtspec.checkpoints.source import load_source
from trtspec.checkpoints.source_model import SourceModel
from trtspec.checkpoints.trtllm import LM_HEAD
from trtspec.checkpoints.writer import Part
from trtspec.core.errors import CheckpointError
from trtspec.engine.model.tensors import TORCH_DTYPES, map_tensor
from trtspec.methods.eagle3 import find_names
from trtspec.methods.eagle3.head import Eagle3Names
from trtspec.methods.head_checks import drafted_ids
from trtspec.training.export import make_part
from trtspec.training.tensors import SourceTensors

EAGLE = ("eagle3", "p_eagle")  # their sources may use other names
VOCAB, INNER = "draft_vocab_size", "dflash_config"
OF_TOKENS = "markov_w2.weight"  # name suffix of other tensors with a row for each drafted token


class ReducedNet:
    """The net in `root`, of a method, for a target."""

    def __init__(self, root: Path, method: str, target: SourceModel) -> None:
        self._source, self._target = load_source(root), target
        names = find_names(self._source) if method in EAGLE else Eagle3Names()
        self._prefix, self._head = names.prefix, f"{names.prefix}{names.head}"
        stored = self._source.tensors.get(f"{self._prefix}d2t")
        self.drafted: Sequence[int] = drafted_ids(stored) if stored else range(target.config.vocab_size)

    def config(self, ids: Sequence[int]) -> dict[str, Any]:
        """Return config.json with the draft vocabulary size in every place that its dialect uses."""
        config, size = self._source.config, {VOCAB: len(ids)}
        inner = config.get(INNER)
        own = {INNER: inner | size} if isinstance(inner, dict) and VOCAB in inner else {}
        return config | size | own

    def parts(self, ids: Sequence[int]) -> list[Part]:
        """Return all tensors; `ids` are the remaining draft tokens, ascending."""
        chosen = torch.tensor(ids)
        rows = torch.searchsorted(torch.tensor(self.drafted), chosen)
        marked = torch.zeros(self._target.config.vocab_size, dtype=torch.bool)
        made = {
            f"{self._prefix}lm_head.weight": self._lm_head()[rows],
            f"{self._prefix}d2t": chosen - torch.arange(len(ids)),
            f"{self._prefix}t2d": marked.index_fill(0, chosen, True),
        }
        made |= {name: self._read(name)[rows] for name in self._source.tensors if name.endswith(OF_TOKENS)}
        kept = [Part.copy(name, each) for name, each in self._source.tensors.items() if name not in made]
        return [*kept, *(make_part(name, each, self._source.main_dtype) for name, each in made.items())]

    def _lm_head(self) -> Tensor:
        """Return the net's LM head, or the target's if the net lacks one."""
        if self._head in self._source.tensors:
            return self._read(self._head)
        rules = [rule for rule in self._target.rules if rule.target == LM_HEAD]
        view = SourceTensors(self._target.source, rules, lambda rule: False, 0, 0, torch.device("cpu")).view()
        return view[LM_HEAD]

    def _read(self, name: str) -> Tensor:
        tensor = self._source.tensors[name]
        if tensor.dtype not in TORCH_DTYPES:
            raise CheckpointError(
                f"{name} is {tensor.dtype}, whose rows cannot be selected",
                where=str(self._source.root),
                hint="use the draft from before quantization",
            )
        return map_tensor(tensor)
