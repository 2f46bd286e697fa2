# SPDX-License-Identifier: Apache-2.0
"""Tasks that write the files of a planned conversion; each has source tensors and the encoding of its output."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from trtspec.checkpoints.arithmetic import Arithmetic, choose_arithmetic
from trtspec.checkpoints.conversion import Activations, Conversion, TargetTensor
from trtspec.checkpoints.encodings import (
    Cast,
    Copy,
    CopyRows,
    CopyScales,
    CopyTensors,
    MergedScale,
    QuantizeRows,
    QuantizeTensors,
    ScaleGroup,
    ScaleSlot,
    compute_scale,
    put_scale,
)
from trtspec.checkpoints.prequantized import Prequantized
from trtspec.checkpoints.rules import INTEGERS, Matched, Rule
from trtspec.checkpoints.safetensors import ITEM_BYTES, FileLayout, TensorInfo
from trtspec.checkpoints.sharding import ShardRegion
from trtspec.checkpoints.stream import Destination, Encoding, Task, Transfer, TransferWorker
from trtspec.core.errors import CheckpointError

# NVIDIA's exporter never scales a cache up: values below 448 are stored unscaled
LEAST_CACHE_SCALE = 1.0


@dataclass(frozen=True)
class ConstantScales:
    """Encoding of the scales that are known in advance: of activations and of the KV cache."""

    values: tuple[tuple[tuple[ScaleSlot, ...], np.float32], ...]

    def run(self, worker: TransferWorker) -> None:
        for slots, value in self.values:
            put_scale(worker, slots, value)


def plan_tasks(
    plan: Conversion,
    layouts: list[FileLayout],
    matched: Matched,
    activations: Activations,
    existing: Prequantized | None,
) -> list[Task]:
    """Return the conversion tasks in output order, and choose their arithmetic.

    `existing` describes a source that is already quantized; its FP8 tensors are copied. The scales of activations and
    of the KV cache come first: they are stored between the weights, and files are hashed while written in sequence.
    Raises CheckpointError if an activation was not measured.
    """
    arithmetic = choose_arithmetic(sum(tensor.nbytes for sources in matched.sources.values() for tensor in sources))
    planner = _Planner(plan, layouts, matched, activations, existing, arithmetic)
    order = {name: number for number, name in enumerate(plan.targets)}
    tasks = sorted([*planner.cast_tasks(), *planner.fp8_tasks()], key=lambda task: order[task.name])
    return [planner.scale_task(), *(part for task in tasks for part in _divide(task))]


@dataclass(frozen=True)
class _Planner:
    """Creates the tasks of a conversion; `existing` is set if the source is already quantized."""

    plan: Conversion
    layouts: list[FileLayout]
    matched: Matched
    activations: Activations
    existing: Prequantized | None
    arithmetic: Arithmetic

    def cast_tasks(self) -> list[Task]:
        found: dict[tuple[TensorInfo, ...], tuple[str, TargetTensor, tuple[Transfer, ...]]] = {}
        for name, sources in self.matched.sources.items():
            target = self.plan.targets[name]
            if target.dtype == "F8_E4M3":
                continue
            transfers = self._transfers(target, sources)
            if sources in found:  # a source used twice (a tied head, the heads of several steps) is read once
                name, _, others = found[sources]  # noqa: PLW2901
                transfers = tuple(
                    replace(one, destinations=one.destinations + other.destinations)
                    for one, other in zip(others, transfers, strict=True)
                )
            found[sources] = name, target, transfers
        return [_task(name, self._cast(target, transfers), transfers) for name, target, transfers in found.values()]

    def fp8_tasks(self) -> Iterator[Task]:
        with_another: set[str] = set()
        for name, sources in self.matched.sources.items():
            target = self.plan.targets[name]
            if target.dtype != "F8_E4M3" or name in with_another:
                continue
            transfers = self._transfers(target, sources)
            if self.plan.scheme.weights == "fp8_rowwise":
                yield self._row_task(name, target, transfers)
            else:
                if twin := self.plan.fused_with(target):
                    with_another.add(twin.rule.name)
                yield self._tensor_task(name, self._groups(target, transfers))

    def scale_task(self) -> Task:
        """Return the task that writes the scales of activations and of the KV cache."""
        if not self.existing:
            return Task("scales", ConstantScales(tuple(self._constants())), 0)
        copied = CopyScales(tuple(self._copied_scales(self.existing)))
        return Task("scales", copied, sum(source.nbytes for source in copied.sources.values()))

    def _cast(self, target: TargetTensor, transfers: tuple[Transfer, ...]) -> Encoding:
        if target.dtype in INTEGERS:
            return Copy(transfers)
        return Cast(transfers, target.dtype, self.arithmetic, target.rule.plus)

    def _row_task(self, name: str, target: TargetTensor, transfers: tuple[Transfer, ...]) -> Task:
        sources = self.matched.sources[name] if self.existing is None else self.existing.row_scales(target.rule)
        scales = self._transfers(self.plan.find_scale(target, "per_channel_scale"), sources)
        if self.existing is None:
            return _task(name, QuantizeRows(transfers, scales, self.arithmetic), transfers)
        return _task(name, CopyRows(transfers, scales), transfers + scales)

    def _tensor_task(self, name: str, groups: tuple[ScaleGroup, ...]) -> Task:
        transfers = [transfer for group in groups for transfer in group.transfers]
        if self.existing is None:
            return _task(name, QuantizeTensors(groups, self.arithmetic), transfers)
        weights = [transfer.source.name for transfer in transfers]
        scales = {weight: self.existing.weight_scale(weight) for weight in weights}
        return _task(name, CopyTensors(groups, scales), transfers, sum(scale.nbytes for scale in scales.values()))

    def _groups(self, target: TargetTensor, transfers: tuple[Transfer, ...]) -> tuple[ScaleGroup, ...]:
        """Return the tensors that share a scale: one expert's, an MLP's fused fc and gate, or all of a target."""
        scale = self.plan.find_scale(target, "weights_scaling_factor")
        if experts := target.rule.experts:
            size = len(transfers) // experts
            return tuple(
                ScaleGroup(transfers[number * size : (number + 1) * size], self._slots(scale, number))
                for number in range(experts)
            )
        slots = self._slots(scale)
        if twin := self.plan.fused_with(target):
            transfers += self._transfers(twin, self.matched.sources[twin.rule.name])
            slots += self._slots(self.plan.find_scale(twin, "weights_scaling_factor"))
        return (ScaleGroup(transfers, slots),)

    def _constants(self) -> Iterator[tuple[tuple[ScaleSlot, ...], np.float32]]:
        for target in self.plan.targets.values():
            rule = target.rule
            if rule.target.endswith(".activation_scaling_factor"):
                value = compute_scale(np.float32(_measured(self.activations.inputs, rule.module)))
            elif cached := _cached(rule):
                tables = {"k": self.activations.keys, "v": self.activations.values}
                largest = max(_measured(tables[kind], rule.module) for kind in cached)
                value = max(compute_scale(np.float32(largest)), np.float32(LEAST_CACHE_SCALE))
            else:
                continue
            yield self._slots(target), value

    def _copied_scales(self, existing: Prequantized) -> Iterator[MergedScale]:
        for target in self.plan.targets.values():
            rule, slots = target.rule, self._slots(target)
            if rule.target.endswith(".activation_scaling_factor"):
                weight = self.plan.targets[f"{rule.module}.weight"]
                fused = [weight, twin] if (twin := self.plan.fused_with(weight)) else [weight]
                sources = [source for one in fused for source in self.matched.sources[one.rule.name]]
                yield MergedScale(tuple(existing.input_scale(source.name) for source in sources), slots)
            elif cached := _cached(rule):
                _, keys, values = self.matched.sources[f"{rule.module}.qkv.weight"]
                projections = {"k": keys, "v": values}
                scales = tuple(existing.cache_scale(projections[kind].name, kind) for kind in cached)
                yield MergedScale(scales, slots, LEAST_CACHE_SCALE)

    def _transfers(self, target: TargetTensor, sources: tuple[TensorInfo, ...]) -> tuple[Transfer, ...]:
        item, name = ITEM_BYTES[target.dtype], target.sharded.name

        def destination(place: ShardRegion) -> Destination:
            offset = self.layouts[place.rank].offsets[name] + place.at_row * len(place.columns) * item
            return Destination(place.rank, place.rows, place.columns, offset)

        return tuple(
            Transfer(source, tuple(map(destination, places)))
            for source, places in zip(sources, target.sharded.places, strict=True)
        )

    def _slots(self, target: TargetTensor, number: int = 0) -> tuple[ScaleSlot, ...]:
        name = target.sharded.name
        return tuple(ScaleSlot(rank, self.layouts[rank].offsets[name] + 4 * number) for rank in target.sharded.ranks)


def _cached(rule: Rule) -> str:
    """Return the kind of a KV cache scale ("k", "v" or "kv" for both), or "" for other rules."""
    kind, found, _ = rule.target.removeprefix("attention.").partition("_cache_scaling_factor")
    return kind if found else ""


def _measured(table: dict[str, float], module: str) -> float:
    if module not in table:
        raise CheckpointError(
            f"the activation of {module} was not measured", hint="calibrate with a prompt that reaches it"
        )
    return table[module]


def _divide(task: Task) -> list[Task]:
    """Return tasks for parts of the tensors of a task with a large tensor, else the task itself."""
    if not isinstance(task.encoding, Cast | QuantizeRows):
        return [task]
    parts: Sequence[Cast | QuantizeRows] = task.encoding.parts()
    if len(parts) <= len(task.encoding.transfers):
        return [task]
    return [_task(f"{task.name} {number}", part, part.transfers) for number, part in enumerate(parts)]


def _task(name: str, encoding: Encoding, transfers: Iterable[Transfer], more_bytes: int = 0) -> Task:
    return Task(name, encoding, sum(transfer.source.nbytes for transfer in transfers) + more_bytes)
