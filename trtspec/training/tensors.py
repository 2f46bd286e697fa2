# SPDX-License-Identifier: Apache-2.0
"""A draft's source tensors as parameters, with the converted checkpoint as a differentiable view of them.

Rules define how a source is converted for engines. Here they are applied to parameters, so gradients reach the source
tensors of any family, and trained tensors are written back under their own names, to the files and layout of their
source.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from trtspec.checkpoints.rules import Rule, SourceTensor
from trtspec.checkpoints.safetensors import TensorInfo, lay_out
from trtspec.checkpoints.source import INDEX, Source
from trtspec.checkpoints.writer import Part
from trtspec.core.errors import CheckpointError
from trtspec.core.files import fsync_path
from trtspec.engine.device import TORCH_DTYPES, map_tensor

TRAINABLE = ("BF16", "F16", "F32")
DOWN, UP = "lora_down", "lora_up"
_WHOLE = {torch.int64: "I64", torch.bool: "BOOL"}


class SourceTensors:
    """Source tensors of rules, in float32; tensors of rules that are not `frozen` become parameters.

    With a `lora` rank their matrices are frozen, and two thin matrices for each are trained instead
    (arXiv:2106.09685). CheckpointError for quantized tensors and experts.
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
                raise CheckpointError(
                    f"{name} is {what}, which cannot be trained",
                    where=str(source.root),
                    hint="train an unquantized draft without experts",
                )
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
        """Return a view of the converted tensors with the current parameters."""
        return ConvertedView(self)

    def tensor(self, name: str) -> Tensor:
        """Return a source tensor; gradients flow through it if it is trained."""
        if name in self.parameters:
            return self.parameters[name]
        down, up = (self.parameters.get(f"{name}.{part}") for part in (DOWN, UP))
        return self.fixed[name] if down is None or up is None else self.fixed[name] + up @ down

    @torch.no_grad()
    def replace(self, name: str, values: Tensor) -> None:
        """Replace a source tensor's values; it is then written together with the trained ones."""
        if name in self.parameters:
            self.parameters[name].copy_(values)
        else:
            self.fixed[name] = values
            self._replaced.add(name)

    @torch.no_grad()
    def changed(self) -> dict[str, Tensor]:
        """Return copies of the changed source tensors, with LoRA merged."""
        names = {name.removesuffix(f".{DOWN}").removesuffix(f".{UP}") for name in self.parameters} | self._replaced
        return {name: self.tensor(name).detach().clone() for name in sorted(names)}

    @torch.no_grad()
    def state(self) -> dict[str, Tensor]:
        """Return copies of the parameters."""
        return {name: parameter.detach().clone() for name, parameter in self.parameters.items()}

    @torch.no_grad()
    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Set the parameters to a result of `state`."""
        for name, parameter in self.parameters.items():
            parameter.copy_(state[name])


class ConvertedView(Mapping[str, Tensor]):
    """Tensors by their names in the converted checkpoint, each computed once."""

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
    """Return the two matrices whose product is added; the upper starts at zero, so initially nothing changes."""
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
            file.write(_bytes(tensor, trained))
    fsync_path(path)


def _bytes(tensor: TensorInfo, trained: Mapping[str, Tensor]) -> memoryview:
    if tensor.name not in trained:
        return np.memmap(tensor.file, np.uint8, "r", tensor.offset, (tensor.nbytes,)).data
    return _rounded(trained[tensor.name], tensor.dtype)


def make_part(name: str, values: Tensor, dtype: str) -> Part:
    """Return a tensor for writing; floating-point numbers are rounded to a dtype given by its safetensors name."""
    stored = dtype if values.is_floating_point() else _WHOLE[values.dtype]
    return Part(name, stored, tuple(values.shape), bytes(_rounded(values, stored)))


def _rounded(values: Tensor, dtype: str) -> memoryview:
    rounded = values.cpu().to(TORCH_DTYPES.get(dtype, values.dtype)).contiguous()
    return rounded.flatten().view(torch.uint8).numpy().data
