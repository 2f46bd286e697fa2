# SPDX-License-Identifier: Apache-2.0
"""A draft's source tensors as parameters, with the converted checkpoint as a differentiable view of them.

Rules define how a source is converted for engines. This module applies them to parameters, so gradients reach the
source tensors of any family, and trained tensors are written back under their own names, to the files and layout of
their source.

A head may draft only some of the target's tokens. A token outside this vocabulary ends every draft, and training cannot
fix that. Therefore training replaces tokens that no response of the target contains by frequent tokens of the
responses; the size, and with it the draft's shape, stays the same. A pruned draft has fewer rows, the mapping to the
target's ids, and a smaller size in config.json.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor

from trtspec.checkpoints.rules import Rule, SourceTensor
from trtspec.checkpoints.safetensors import TensorInfo, lay_out
from trtspec.checkpoints.source import INDEX, Source, load_source
from trtspec.checkpoints.source_model import SourceModel
from trtspec.checkpoints.trtllm import LM_HEAD
from trtspec.checkpoints.writer import Part
from trtspec.core.errors import CheckpointError
from trtspec.core.files import fsync_path
from trtspec.engine.device import TORCH_DTYPES, map_tensor
from trtspec.methods.base import VocabularyNames
from trtspec.methods.draft_head import drafted_ids
from trtspec.training.texts import TrainingText

TRAINABLE = ("BF16", "F16", "F32")
DOWN, UP = "lora_down", "lora_up"
_WHOLE = {torch.int64: "I64", torch.bool: "BOOL"}


class SourceTensors:
    """Source tensors of rules, in float32; tensors of rules that are not `frozen` become parameters.

    With a `lora` rank their matrices are frozen, and two low-rank matrices for each are trained instead
    (arXiv:2106.09685). Raises CheckpointError for quantized tensors and experts.
    """

    def __init__(
        self,
        source: Source,
        rules: Sequence[Rule],
        device: torch.device,
        frozen: Collection[str] = (),
        *,
        lora: int = 0,
        seed: int = 0,
    ) -> None:
        self.source, self.rules = source, {rule.name: rule for rule in rules}
        self._replaced: set[str] = set()
        self.device = device
        named = {tensor.name: rule for rule in rules for tensor in rule.sources if tensor.name}
        for name, rule in named.items():
            if source.tensors[name].dtype not in (*TRAINABLE, "I64") or rule.experts:
                what = "experts" if rule.experts else source.tensors[name].dtype
                message, hint = (
                    f"{name} is {what}, which cannot be trained",
                    "train an unquantized draft without experts",
                )
                raise CheckpointError(message, where=str(source.root), hint=hint)
        self.fixed = {name: _load(source, name, device) for name in named}
        generator = torch.Generator().manual_seed(seed)
        self.parameters: dict[str, Tensor] = {}
        for name, rule in named.items():
            if rule.name in frozen or not self.fixed[name].is_floating_point():
                continue
            if lora and self.fixed[name].dim() == 2:
                self.parameters |= _thin(name, self.fixed[name], lora, generator)
            elif not lora:
                self.parameters[name] = self.fixed.pop(name).requires_grad_()

    def view(self) -> ConvertedView:
        return ConvertedView(self)

    def tensor(self, name: str) -> Tensor:
        """Return a source tensor, including its LoRA product if any; a trained tensor requires gradients."""
        if name in self.parameters:
            return self.parameters[name]
        down, up = (self.parameters.get(f"{name}.{part}") for part in (DOWN, UP))
        return self.fixed[name] if down is None or up is None else self.fixed[name] + up @ down

    @torch.no_grad()
    def replace(self, name: str, values: Tensor) -> None:
        """Replace a source tensor's values; it is then part of `changed`, like the trained tensors."""
        if name in self.parameters:
            self.parameters[name].copy_(values)
        else:
            self.fixed[name] = values
            self._replaced.add(name)

    @torch.no_grad()
    def changed(self) -> dict[str, Tensor]:
        """Return copies of the trained and replaced source tensors, with LoRA merged."""
        names = {name.removesuffix(f".{DOWN}").removesuffix(f".{UP}") for name in self.parameters} | self._replaced
        return {name: self.tensor(name).detach().clone() for name in sorted(names)}

    @torch.no_grad()
    def state(self) -> dict[str, Tensor]:
        return {name: parameter.detach().clone() for name, parameter in self.parameters.items()}

    @torch.no_grad()
    def load_state(self, state: Mapping[str, Tensor]) -> None:
        for name, parameter in self.parameters.items():
            parameter.copy_(state[name])


class ConvertedView(Mapping[str, Tensor]):
    """Tensors by their names in the converted checkpoint, each computed once, at its first access."""

    def __init__(self, tensors: SourceTensors) -> None:
        self._tensors = tensors
        self._made: dict[str, Tensor] = {}

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._made:
            self._made[name] = self._make(self._tensors.rules[name])
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors.rules)

    def __len__(self) -> int:
        return len(self._tensors.rules)

    def _make(self, rule: Rule) -> Tensor:
        parts = [self._rows(part) for part in rule.sources]
        whole = parts[0] if len(parts) == 1 else torch.cat(parts)
        return whole + rule.plus if rule.plus else whole

    def _rows(self, part: SourceTensor) -> Tensor:
        if not part.name:
            return torch.zeros(part.shape, device=self._tensors.device)
        whole = self._tensors.tensor(part.name)
        rows = whole[part.first_row : part.first_row + part.shape[0]] if part.stored_rows else whole
        missing = part.target_rows - len(rows)
        return torch.cat([rows, rows.new_zeros(missing, *rows.shape[1:])]) if missing > 0 else rows


def converted_view(source: Source, rules: Sequence[Rule]) -> ConvertedView:
    """Return the converted tensors of rules on the CPU, without parameters."""
    return SourceTensors(source, rules, torch.device("cpu"), [rule.name for rule in rules]).view()


def _load(source: Source, name: str, device: torch.device) -> Tensor:
    found = map_tensor(source.tensors[name])
    wanted = torch.float32 if found.is_floating_point() else found.dtype
    return found.to(device, wanted, copy=True)


def _thin(name: str, matrix: Tensor, rank: int, generator: torch.Generator) -> dict[str, Tensor]:
    """Return the LoRA matrices of a tensor; the second one is zero, so initially nothing changes."""
    height, width = matrix.shape
    down = torch.randn(rank, width, generator=generator) / width**0.5
    up = torch.zeros(height, rank)
    made = {f"{name}.{DOWN}": down, f"{name}.{UP}": up}
    return {key: value.to(matrix.device).requires_grad_() for key, value in made.items()}


def write_checkpoint(source: Source, trained: Mapping[str, Tensor], out: Path) -> None:
    """Write the source to `out` with trained tensors, rounded to their stored dtypes.

    Names, shards, config.json and tokenizer are unchanged, so readers of the source can read the result.
    """
    for path in [*source.documents, *source.tokenizer_files, source.root / INDEX]:
        if path.is_file():
            shutil.copyfile(path, out / path.name)
    for shard in source.weight_files:
        tensors = [tensor for tensor in source.tensors.values() if tensor.file == shard]
        _write_shard(out / shard.name, tensors, trained)


def _write_shard(path: Path, tensors: list[TensorInfo], trained: Mapping[str, Tensor]) -> None:
    layout = lay_out((tensor.name, tensor.dtype, tensor.shape) for tensor in tensors)
    with path.open("wb") as file:
        file.write(layout.header)
        for tensor in tensors:
            if tensor.name in trained:
                file.write(_rounded(trained[tensor.name], tensor.dtype))
            else:
                file.write(np.memmap(tensor.file, np.uint8, "r", tensor.offset, (tensor.nbytes,)).data)
    fsync_path(path)


def make_part(name: str, values: Tensor, dtype: str) -> Part:
    """Return a tensor for writing; floating-point values are rounded to `dtype`, a safetensors name."""
    stored = dtype if values.is_floating_point() else _WHOLE[values.dtype]
    return Part(name, stored, tuple(values.shape), bytes(_rounded(values, stored)))


def _rounded(values: Tensor, dtype: str) -> memoryview:
    rounded = values.cpu().to(TORCH_DTYPES.get(dtype, values.dtype)).contiguous()
    return rounded.flatten().view(torch.uint8).numpy().data


MOST_MISSED = 0.005  # share of the responses' tokens below which the vocabulary is not changed
VOCAB = "draft_vocab_size"


def chosen_ids(ids: Tensor, texts: Sequence[TrainingText]) -> Tensor:
    """Return as many ids as `ids` [n], ascending: the most frequent in the responses, ties in the order of `ids`.

    The result is `ids` itself if other tokens are at most MOST_MISSED of the responses.
    """
    counts, known = _counted(texts), ids.tolist()
    others = sorted(counts.keys() - set(known))
    if sum(counts[token] for token in others) <= MOST_MISSED * counts.total():
        return ids
    return torch.tensor(most_frequent(len(ids), texts, [*known, *others]), device=ids.device)


def most_frequent(count: int, texts: Sequence[TrainingText], among: Iterable[int]) -> list[int]:
    """Return the `count` ids of `among` that are most frequent in the responses, ascending; ties go by order."""
    counts = _counted(texts)
    return sorted(sorted(among, key=lambda token: -counts[token])[:count])


def _counted(texts: Sequence[TrainingText]) -> Counter[int]:
    return Counter(token for text in texts for token in text.answer)


def moved_rows(rows: Tensor, ids: Tensor, chosen: Tensor, target_rows: Tensor) -> Tensor:
    """Return an LM head's `rows` [n, hidden] of `ids`, which ascend, rearranged for `chosen`.

    Rows of new ids are copied from `target_rows` [vocab, hidden], scaled to the average norm of the head's rows.
    """
    known = torch.isin(chosen, ids)
    scale = rows.norm(dim=1).mean() / target_rows[ids].norm(dim=1).mean()
    moved: Tensor = target_rows[chosen] * scale
    moved[known] = rows[torch.searchsorted(ids, chosen[known])]
    return moved


def stored_maps(weights: Path) -> dict[str, Tensor]:
    """Load d2t [draft vocab] and t2d [vocab] of a head's safetensors file, if present."""
    with safe_open(weights, framework="pt") as file:
        return {name: file.get_tensor(name) for name in ("d2t", "t2d") if name in file.keys()}  # noqa: SIM118


class ReducedNet:
    """A draft whose vocabulary can be reduced; `find_names` is the `vocabulary_names` function of its method.

    `drafted` are the target's ids of its draft tokens.
    """

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
        """Return all tensors of the reduced draft; `ids` are the remaining draft tokens, ascending."""
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
        """Return the draft's LM head, or the target's if the draft lacks one."""
        if (stored := f"{self._names.prefix}{self._names.lm_head}") in self._source.tensors:
            return self._read(stored)
        rules = [rule for rule in self._target.rules if rule.target == LM_HEAD]
        return converted_view(self._target.source, rules)[LM_HEAD]

    def _read(self, name: str) -> Tensor:
        tensor = self._source.tensors[name]
        if tensor.dtype not in TORCH_DTYPES:
            message = f"{name} is {tensor.dtype}, whose rows cannot be selected"
            hint = "use the draft from before quantization"
            raise CheckpointError(message, where=str(self._source.root), hint=hint)
        return map_tensor(tensor)
